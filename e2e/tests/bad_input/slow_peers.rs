//! Peers that do not read what they are sent, and peers that ask without end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpu_handoff_e2e::rough::{Client, legacy};
use gpu_handoff_protocol::limits::MESSAGE_ITEMS;
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, Event, Target, Wanted};
use gpu_handoff_protocol::{Code, DeviceUuid, LeaseId};

use crate::scene::{BYTES, Scene, Stage, eventually, expect_code};

/// Physical memory of a process, in bytes.
fn memory(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("a VmRSS line")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Publishes so many buffers that need no GPU worker, each with so many bytes of metadata.
fn publish_many(client: &mut Client, prefix: &str, count: usize, metadata: usize) -> anyhow::Result<()> {
    let device = DeviceUuid::from_bytes([1; 16]);
    let mut requests = Vec::new();
    // So that a packet holds them whatever their metadata.
    const AT_ONCE: usize = MESSAGE_ITEMS - 14;
    for first in (0..count).step_by(AT_ONCE) {
        let item = |i| {
            let mut item = legacy(&format!("{prefix}-{i}"), device, BYTES)?;
            item.facts.metadata.user = vec![0; metadata];
            Ok::<_, anyhow::Error>(item)
        };
        let items = (first..count.min(first + AT_ONCE)).map(item).collect::<Result<_, _>>()?;
        requests.push(client.begin(ClientBody::Publish(items))?);
    }
    for request in requests {
        let BrokerBody::Published(outcomes) = client.answer(request)? else { anyhow::bail!("no outcomes") };
        for outcome in outcomes {
            outcome?;
        }
    }
    Ok(())
}

/// What a watch tells until it has told all that is there.
fn snapshot(client: &mut Client, request: u64) -> anyhow::Result<usize> {
    let mut appeared = 0;
    loop {
        match client.answer(request)? {
            BrokerBody::Event(Event::Appeared(_)) => appeared += 1,
            BrokerBody::Event(Event::SnapshotDone) => return Ok(appeared),
            BrokerBody::Event(_) => {}
            other => anyhow::bail!("after {appeared} buffers the watch was answered by {other:?}"),
        }
    }
}

/// Asks again and again for answers that are as long as can be, and reads none, until the connection is ended.
fn never_reads(client: &Client) -> anyhow::Result<u64> {
    let long = "x".repeat(128);
    let item = Wanted { target: Target::Name(long.parse()?), newer_than: u64::MAX };
    let mut asked = 0;
    while client.say(
        10 + asked,
        ClientBody::Acquire { items: vec![item.clone(); MESSAGE_ITEMS], wait: Duration::ZERO, device: None },
    )? {
        asked += 1;
        ensure!(asked < 1_000_000, "it is listened to for ever");
    }
    Ok(asked)
}

#[test]
fn a_client_that_never_reads_its_answers() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let before = memory(stage.node.broker_pid()?)?;
        let asked: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let client = Client::greeted(stage.rough.socket());
                    scope.spawn(move || never_reads(&client?))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect::<anyhow::Result<_>>()
        })?;
        let after = memory(stage.node.broker_pid()?)?;
        println!("asked {asked:?} times; the plugin grew from {before} to {after} bytes");
        assert!(after < before + (160 << 20), "the plugin grew from {before} to {after} bytes");
        ensure!(Client::greeted(stage.rough.socket())?.acquire_nothing()?, "the pod is not served any more");
        Ok(())
    })
}

#[test]
fn a_watcher_that_does_not_read() -> anyhow::Result<()> {
    const MANY: usize = 16_000;
    Scene::start()?.with_masses().run(|stage| {
        let mut watcher = Client::greeted(stage.rough.socket())?;
        let watch = watcher.begin(ClientBody::Watch)?;
        snapshot(&mut watcher, watch)?;
        let mut publisher = Client::greeted(stage.rough.socket())?;
        publish_many(&mut publisher, "many", MANY, 1_000)?;
        // Every event up to the first that was lost, then the refusal, then the end of the watch; nothing in between.
        let mut told = 0;
        let refusal = loop {
            match watcher.answer(watch)? {
                BrokerBody::Event(_) if told < 2 * MANY => told += 1,
                BrokerBody::Refused(refusal) => break refusal,
                other => panic!("{other:?}"),
            }
        };
        expect_code(&refusal, Code::WatchOverflow);
        assert!(told > MANY / 2, "{told}");
        ensure!(matches!(watcher.answer(watch)?, BrokerBody::Cancelled), "the watch goes on");
        // The connection goes on, and the number can be used for a new watch.
        ensure!(watcher.acquire_nothing()?, "the connection has ended");
        drop(publisher);
        publish_many(&mut Client::greeted(stage.rough.socket())?, "few", 10, 0)?;
        watcher.say(watch, ClientBody::Watch)?;
        snapshot(&mut watcher, watch)?;
        Ok(())
    })
}

#[test]
fn a_watch_of_as_many_buffers_as_two_members_may_publish() -> anyhow::Result<()> {
    const MOST: usize = 16_384;
    Scene::start()?.with_masses().run(|stage| {
        let mut one = Client::greeted(stage.rough.socket())?;
        publish_many(&mut one, "one", MOST, 0)?;
        // As a guest of a pod that holds two buffers of its own now and then.
        let mut two = Client::greeted(stage.consumer_socket())?;
        publish_many(&mut two, "two", MOST, 0)?;
        let mut watcher = Client::greeted(stage.rough.socket())?;
        for _ in 0..2 {
            let watch = watcher.begin(ClientBody::Watch)?;
            assert!(snapshot(&mut watcher, watch)? >= 2 * MOST);
            watcher.begin(ClientBody::Cancel { request: watch })?;
        }
        Ok(())
    })
}

/// Asks without end from several connections, while `ask` says what.
fn flood(stage: &Stage, ask: impl Fn(&mut Client) -> anyhow::Result<()> + Sync) -> anyhow::Result<u64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (stop, ask) = (&stop, &ask);
                scope.spawn(move || -> anyhow::Result<()> {
                    let mut client = Client::greeted(stage.rough.socket())?;
                    while !stop.load(Ordering::Relaxed) {
                        ask(&mut client)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let (begin, rounds) = (Instant::now(), stage.rounds());
        let progress = eventually("the pair goes on", || Ok(stage.rounds() >= rounds + 10));
        let took = begin.elapsed();
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a flooder panicked"))??;
        }
        progress?;
        Ok(u64::try_from(took.as_millis())? / 10)
    })
}

#[test]
fn a_flood_of_requests() -> anyhow::Result<()> {
    Scene::start()?.with_masses().run(|stage| {
        let alone = {
            let (begin, rounds) = (Instant::now(), stage.rounds());
            eventually("the pair goes on", || Ok(stage.rounds() >= rounds + 10))?;
            begin.elapsed().as_millis() / 10
        };
        let cheap = flood(stage, |client| {
            let requests: Vec<u64> = (0..100)
                .map(|_| client.begin(ClientBody::Release(vec![LeaseId(1); 64])))
                .collect::<Result<_, _>>()?;
            for request in requests {
                client.answer(request)?;
            }
            Ok(())
        })?;
        let mut publisher = Client::greeted(stage.rough.socket())?;
        publish_many(&mut publisher, "many", 2_000, 0)?;
        let dear = flood(stage, |client| {
            let watch = client.begin(ClientBody::Watch)?;
            client.begin(ClientBody::Cancel { request: watch })?;
            while !matches!(client.answer(watch)?, BrokerBody::Cancelled) {}
            Ok(())
        })?;
        // And without waiting for a single answer, as fast as can be.
        let blind = flood(stage, |_| {
            let deaf = Client::greeted(stage.rough.socket())?;
            let names = vec![Wanted { target: Target::Name("x".parse()?), newer_than: 0 }; MESSAGE_ITEMS];
            let ask = || ClientBody::Acquire { items: names.clone(), wait: Duration::ZERO, device: None };
            for request in 10..2_000 {
                if !deaf.say(request, ask())? {
                    break;
                }
            }
            Ok(())
        })?;
        println!("a round of the pair takes {alone} ms alone, {cheap} ms beside cheap requests, {dear} ms beside dear ones, {blind} ms beside deaf peers");
        Ok(())
    })
}
