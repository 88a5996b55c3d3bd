//! A connection that has no room: nobody is held up by it, and nothing is forgotten.

use std::time::Duration;

use gpu_handoff_protocol::LeaseId;
use gpu_handoff_protocol::message::{BrokerBody, ClientBody};

use super::conversation::named;
use super::fake::{connected, until};

#[test]
fn a_full_connection_holds_up_no_drop() {
    let (client, mut fake, _) = connected();
    let connection = &client.shared.connection;
    // More single releases than the queue of a connection takes while the node reads nothing.
    const LEASES: u64 = 2_000;
    for lease in 0..LEASES {
        connection.release_later(LeaseId(lease));
    }
    let mut heard = Vec::new();
    while (heard.len() as u64) < LEASES {
        heard.extend(fake.hear_release());
    }
    assert!(heard.iter().copied().eq(0..LEASES), "each once, in order");
}

#[test]
fn what_found_no_room_goes_out_though_nothing_comes_in() {
    for somebody_waits in [false, true] {
        let (client, mut fake, _) = connected();
        std::thread::scope(|scope| {
            let mut waiting = None;
            if somebody_waits {
                waiting = Some(scope.spawn(|| client.acquire(named("w").wait(Duration::from_secs(600)))));
                assert!(matches!(fake.expect().1, ClientBody::Acquire { .. }));
                until("the waiting thread reads", || client.shared.connection.somebody_reads());
            }
            (0..2_000).for_each(|lease| client.shared.connection.release_later(LeaseId(lease)));
            let mut heard = Vec::new();
            while heard.len() < 2_000 {
                let (_, body) = fake.expect();
                let ClientBody::Release(leases) = body else { panic!("{body:?}") };
                heard.extend(leases.into_iter().map(|lease| lease.0));
            }
            assert!(heard.iter().copied().eq(0..2_000), "each once, in order");
            fake.hang_up();
            drop(waiting.map(|thread| thread.join().unwrap().unwrap_err()));
        });
    }
}

#[test]
fn a_dropped_watch_is_cancelled_though_there_was_no_room() {
    let (client, mut fake, _) = connected();
    let watch = client.watch().unwrap();
    let (watched, _) = fake.expect();
    for lease in 0..2_000 {
        client.shared.connection.release_later(LeaseId(lease));
    }
    drop(watch);
    let (mut released, mut cancelled) = (0, 0);
    while released < 2_000 || cancelled == 0 {
        let (request, body) = fake.expect();
        match body {
            ClientBody::Release(leases) => {
                released += leases.len();
                fake.say(request, BrokerBody::Released(vec![Ok(()); leases.len()]));
            }
            ClientBody::Cancel { request } => {
                assert_eq!(request, watched);
                cancelled += 1;
                fake.say(watched, BrokerBody::Cancelled);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((released, cancelled), (2_000, 1));
}
