//! Whether the kubelet says which devices pods hold: looked at now and then, for whoever asks how the node is.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gpu_handoff_kubelet::resources::Resources;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::chain;
use crate::limits;

/// What the last look found; `None`: there was none yet.
pub(in crate::node) type Answers = Option<Result<(), Silence>>;

/// It does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct Silence {
    /// Since when.
    pub(in crate::node) since: SystemTime,
    pub(in crate::node) why: String,
}

/// Looks, for as long as the node lives.
pub(in crate::node) async fn look(socket: PathBuf, seen: watch::Sender<Answers>) {
    loop {
        let outcome = ask(&socket).await;
        seen.send_modify(|last| *last = Some(after(last.take(), outcome, SystemTime::now())));
        sleep(limits::DEVICES_LOOKS).await;
    }
}

async fn ask(socket: &Path) -> Result<(), String> {
    let asked = async {
        let resources = Resources::open(socket.to_path_buf()).await.map_err(|e| chain(&e))?;
        resources.list().await.map(drop).map_err(|e| chain(&e))
    };
    let asked = timeout(limits::DEVICES_TIME, asked).await;
    asked.unwrap_or_else(|_| Err(format!("no answer within {:?}", limits::DEVICES_TIME)))
}

/// What is known after another look: who was silent before has been since then.
fn after(last: Answers, outcome: Result<(), String>, now: SystemTime) -> Result<(), Silence> {
    let since = match last {
        Some(Err(before)) => before.since,
        Some(Ok(())) | None => now,
    };
    outcome.map_err(|why| Silence { since, why })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_is_silent_is_so_since_the_first_look_that_found_it() {
        let (first, then) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_secs(60));
        let silent = |last, now| after(last, Err("cut".to_owned()), now);
        let since_first = silent(None, first);
        assert_eq!(since_first, Err(Silence { since: first, why: "cut".to_owned() }));
        assert_eq!(silent(Some(since_first.clone()), then), since_first);
        assert_eq!(after(Some(since_first), Ok(()), then), Ok(()));
        assert_eq!(silent(Some(Ok(())), then).unwrap_err().since, then);
    }

    #[tokio::test]
    async fn where_nobody_listens_it_is_told_why() {
        let (seen, mut told) = watch::channel(None);
        let found = tokio::select! {
            () = look("/nowhere/kubelet.sock".into(), seen) => panic!("it has ended"),
            found = told.wait_for(Option::is_some) => found.unwrap().clone(),
        };
        assert!(found.unwrap().unwrap_err().why.contains("/nowhere/kubelet.sock"));
    }
}
