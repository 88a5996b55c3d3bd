//! Volumes of pods that nobody has told of.

use std::time::Duration;

use gpu_handoff_kubelet::pods::Source;

use super::*;

/// Asks for a volume whose pod is not known, and gives who is answered.
async fn wait(ground: &mut Ground) -> oneshot::Receiver<Answer> {
    let (asker, answer) = oneshot::channel();
    ground.membership.publish(ground.publish("csi-1"), asker).await.unwrap();
    answer
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_pod_nobody_tells_of_is_answered_with_who_was_asked_and_how_that_one_is() {
    let mut ground = ground();
    let mut told = Vec::new();
    let events = [
        None,
        Some(PodEvent::Source(Source::ApiServer)),
        Some(PodEvent::Away("connection refused".into())),
        Some(PodEvent::Synced),
    ];
    for event in events {
        if let Some(event) = event {
            ground.hear(event).await;
        }
        let mut answer = wait(&mut ground).await;
        let until = ground.membership.next_answer().unwrap();
        ground.membership.answer_unknown(until - Duration::from_millis(1));
        answer.try_recv().unwrap_err();
        ground.membership.answer_unknown(until);
        let Ok(Err(Refusal::NotYet(why))) = answer.try_recv() else { panic!("no answer") };
        assert_eq!(ground.waits(), std::slice::from_ref(&why));
        told.push(why);
    }
    let pod = format!("pod team/producer ({UID}) is not known of yet: ");
    assert!(told.iter().all(|why| why.starts_with(&pod)), "{told:?}");
    assert!(told[0].ends_with("nobody was asked yet for the pods of this node"), "{}", told[0]);
    assert!(told[1].contains("the API server, which") && told[1].ends_with("not named all of them yet"));
    let away = &told[2];
    assert!(away.contains("the API server, which") && away.ends_with("it is back: connection refused"));
    let (_, since) = away.split_once("away since ").unwrap();
    assert!(
        since.starts_with("20") && since[10..].starts_with('T') && since[19..].starts_with("Z, "),
        "{since}"
    );
    assert!(told[3].ends_with("has not named it among them"), "{}", told[3]);
    assert_eq!(ground.membership.next_answer(), None);
}

#[tokio::test(start_paused = true)]
async fn the_kubelet_hears_why_before_its_service_gives_up_and_one_too_many_at_once() {
    assert!(limits::POD_NEWS_TIME + Duration::from_secs(5) <= gpu_handoff_kubelet::csi::ANSWER_TIME);
    let mut ground = ground();
    let mut answers = Vec::new();
    for _ in 0..limits::WAITING_VOLUMES {
        answers.push(wait(&mut ground).await);
    }
    let mut one_more = wait(&mut ground).await;
    assert!(matches!(one_more.try_recv(), Ok(Err(Refusal::NotYet(_)))));
    assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()));
}
