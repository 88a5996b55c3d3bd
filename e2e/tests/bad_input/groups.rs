//! Pods of different groups, and pods of one group that want the same name.

use std::time::Duration;

use anyhow::Context;
use gpu_handoff_e2e::node::PATIENCE;
use gpu_handoff_e2e::rough::{Client, legacy};
use gpu_handoff_protocol::message::{BrokerBody, ClientBody, EndReason, Event, Target};
use gpu_handoff_protocol::{BufferId, Code, DeviceUuid, LeaseId};

use crate::scene::{BYTES, Scene, expect_code, refused_with};
use crate::source::SOURCE;

const NOW: Duration = Duration::ZERO;

#[test]
fn another_groups_buffer_reads_like_one_that_does_not_exist() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let (insider, grant) = stage.with_memory()?;
        let id = grant.buffer.id;
        let nothing = BufferId { random: id.random ^ 1, ..id };
        let mut stranger = Client::greeted(stage.stranger.socket())?;
        // Word by word, but for the id itself.
        let about = |client: &mut Client, id: BufferId| -> anyhow::Result<[String; 2]> {
            let acquired = client.acquire(Target::Id(id), NOW)?.unwrap_err();
            let retired = client.retire(id, NOW)?.unwrap_err();
            expect_code(&acquired, Code::NotFound);
            expect_code(&retired, Code::NotFound);
            Ok([acquired, retired].map(|r| r.to_string().replace(&id.to_string(), "ID")))
        };
        assert_eq!(about(&mut stranger, id)?, about(&mut stranger, nothing)?);
        refused_with(stranger.acquire(Target::Name(SOURCE.parse()?), NOW)?, Code::NotFound);
        refused_with(
            stranger.acquire(Target::Name(SOURCE.parse()?), Duration::from_millis(50))?,
            Code::WaitTimeout,
        );
        refused_with(stranger.release(vec![grant.lease])?.remove(0), Code::NotLeased);
        // The name is free in the other group.
        stranger.publish_one(legacy(SOURCE, DeviceUuid::from_bytes([1; 16]), BYTES)?)??;
        // After its end, too.
        drop((insider, grant));
        source.finish()?;
        assert_eq!(about(&mut stranger, id)?, about(&mut stranger, nothing)?);
        Ok(())
    })
}

#[test]
fn a_watch_sees_its_own_group_alone() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let source = stage.source()?;
        let mut stranger = Client::greeted(stage.stranger.socket())?;
        let watch = stranger.begin(ClientBody::Watch)?;
        anyhow::ensure!(
            matches!(stranger.answer(watch)?, BrokerBody::Event(Event::SnapshotDone)),
            "more was there"
        );
        // The pair hands buffers over all the while; the next event that comes is of the watcher's own group.
        let before = stage.rounds();
        crate::scene::eventually("the pair goes on", || Ok(stage.rounds() > before + 3))?;
        let own = stranger.publish_one(legacy("own", DeviceUuid::from_bytes([1; 16]), BYTES)?)??.id;
        let mut heard = Client::greeted(stage.stranger.socket())?;
        let other = heard.begin(ClientBody::Watch)?;
        match heard.answer(other)? {
            BrokerBody::Event(Event::Appeared(info)) => assert_eq!(info.id, own),
            other => panic!("{other:?}"),
        }
        anyhow::ensure!(
            matches!(heard.answer(other)?, BrokerBody::Event(Event::SnapshotDone)),
            "more was there"
        );
        drop(stranger);
        match heard.answer(other)? {
            BrokerBody::Event(Event::Gone { id, reason: EndReason::OwnerClosed }) => assert_eq!(id, own),
            other => panic!("{other:?}"),
        }
        source.finish()
    })
}

#[test]
fn a_name_belongs_to_the_pod_that_holds_it() -> anyhow::Result<()> {
    Scene::start()?.run(|stage| {
        let device = DeviceUuid::from_bytes([1; 16]);
        let mut holder = Client::greeted(stage.rough.socket())?;
        let first = holder.publish_one(legacy("ours", device, BYTES)?)??;
        // A pod of the same group, through its own sidecar.
        let mut rival = Client::greeted(stage.consumer_socket())?;
        let refusal = rival.publish_one(legacy("ours", device, BYTES)?)?.unwrap_err();
        expect_code(&refusal, Code::NameTaken);
        assert!(refusal.compared()[0].found.contains("demo/rough"), "{refusal}");
        // The same pod may go on: a later one has a higher generation.
        let mut colleague = Client::greeted(stage.rough.socket())?;
        let second = colleague.publish_one(legacy("ours", device, BYTES)?)??;
        assert!(second.generation > first.generation);
        refused_with(rival.retire(second.id, NOW)?, Code::NotOwner);
        refused_with(rival.release(vec![LeaseId(1)])?.remove(0), Code::NotLeased);
        // Free again, it may be taken.
        drop((holder, colleague));
        crate::scene::eventually("the name is free", || {
            Ok(rival.publish_one(legacy("ours", device, BYTES)?)?.is_ok())
        })?;
        rival
            .acquire(Target::Name("ours".parse()?), PATIENCE)?
            .map(drop)
            .or_else(|refusal| {
                // Publisher and importer are one process here, which legacy handles may not stand.
                if refusal.code() == Code::PidCollision { Ok(()) } else { Err(refusal) }
            })
            .context("acquire what was published")
    })
}
