//! What the registry takes.

use super::*;

/// What a live buffer takes, for `cargo test -p gpu-handoff-plugin --lib memory -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn memory_of_a_buffer() {
    let pages = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let mut w = World::new(Policy { legacy: LegacyRule::WithinNamespace, ..Policy::default() });
    let producer = w.open(0, 1);
    let count = 15_000;
    let mut vetted: Vec<_> = (0..count)
        .map(|n| {
            let mut vetted = w.vetted(&format!("{n:032}"), Carrier::Legacy([1; 64]));
            vetted.publication.facts.metadata.user = vec![7; 64];
            vetted
        })
        .collect();
    let before = pages();
    for vetted in vetted.drain(..) {
        let effects = w.registry.apply(Input::Ask(producer, 1, Ask::Publish(vec![Ok(vetted)])), w.now);
        let mut records = Vec::new();
        w.registry.take_records(&mut records);
        drop((effects, records));
    }
    let spent = pages() - before;
    println!("{} B a buffer beside its facts", spent / count);
}
