//! A scenario: run on a stage of its own, for a limited time, and reported.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use libtest_mimic::{Completion, Failed, Trial};

use crate::ground::{Found, Ground};
use crate::report;
use crate::scene::{Scene, Standard};

/// How long a scenario may take.
const SCENARIO: Duration = Duration::from_secs(120);

/// How long one that has the cluster alone may take: with as many pods as a node has, if asked.
const SCENARIO_ALONE: Duration = Duration::from_secs(900);

/// How long its namespace may take to be made, and how long to be given back.
const STAGE: Duration = Duration::from_secs(60);

/// How long what is printed of a failure may take to be collected.
const REPORT: Duration = Duration::from_secs(20);

/// What came of a scenario that did not fail.
pub(crate) enum Outcome {
    Done,
    /// It cannot be tried on this machine.
    NotRun(String),
    /// This machine cannot do it, and says so as it should: shown as not run, and no failure where nothing may be left out.
    Refused(String),
}

type Run = Box<dyn FnOnce(&Ground) -> anyhow::Result<Outcome> + Send>;

/// One scenario.
pub(crate) struct Scenario {
    name: &'static str,
    run: Result<Run, &'static str>,
}

/// A scenario with a namespace of its own, which admits what the standard admits.
pub(crate) fn scenario<F>(name: &'static str, standard: Standard, play: F) -> Scenario
where
    F: AsyncFn(&Scene<'_>) -> anyhow::Result<Outcome> + Send + 'static,
{
    let run = move |ground: &Ground| {
        ground.block_on(async {
            let _with_others = ground.floor.read().await;
            on_stage(ground, name, standard, SCENARIO, play).await
        })
    };
    Scenario { name, run: Ok(Box::new(run)) }
}

/// One that has the cluster alone: what it does to the node, others would not bear.
pub(crate) fn scenario_alone<F>(name: &'static str, standard: Standard, play: F) -> Scenario
where
    F: AsyncFn(&Scene<'_>) -> anyhow::Result<Outcome> + Send + 'static,
{
    let run = move |ground: &Ground| {
        ground.block_on(async {
            let _alone = ground.floor.write().await;
            on_stage(ground, name, standard, SCENARIO_ALONE, play).await
        })
    };
    Scenario { name, run: Ok(Box::new(run)) }
}

/// What cannot be a scenario yet, and why.
pub(crate) fn not_run(name: &'static str, why: &'static str) -> Scenario {
    Scenario { name, run: Err(why) }
}

impl Scenario {
    pub(crate) fn on(self, ground: &Found) -> Trial {
        let Self { name, run } = self;
        let ground = ground.clone();
        Trial::ignorable_test(name, move || match (run, ground) {
            (Err(why), _) => Ok(ignored(format!("not run: {why}"))),
            (Ok(_), Err(why)) => Ok(ignored(format!("skipped: {why}"))),
            (Ok(run), Ok(ground)) => finish(run, &ground),
        })
    }
}

fn ignored(why: String) -> Completion {
    Completion::ignored_with(why)
}

/// Where nothing may be left out, what this machine cannot do is a failure.
fn finish(run: Run, ground: &Arc<Ground>) -> Result<Completion, Failed> {
    match run(ground) {
        Ok(Outcome::Done) => Ok(Completion::Completed),
        Ok(Outcome::NotRun(why)) if std::env::var("GPU_HANDOFF_TESTS").as_deref() == Ok("all") => {
            Err(format!("GPU_HANDOFF_TESTS=all, but: {why}").into())
        }
        Ok(Outcome::NotRun(why)) => Ok(ignored(format!("skipped: {why}"))),
        Ok(Outcome::Refused(why)) => Ok(ignored(format!("refused, as it should be: {why}"))),
        Err(error) => Err(format!("{error:#}").into()),
    }
}

async fn on_stage<F>(
    ground: &Ground,
    name: &str,
    standard: Standard,
    time: Duration,
    play: F,
) -> anyhow::Result<Outcome>
where
    F: AsyncFn(&Scene<'_>) -> anyhow::Result<Outcome>,
{
    let scene = within(STAGE, Scene::open(ground, name, standard)).await?;
    let mut played = within(time, async {
        scene.prepare().await?;
        play(&scene).await
    })
    .await;
    if let Err(error) = played {
        let report = tokio::time::timeout(REPORT, report::of(&scene)).await;
        let report = report.unwrap_or_else(|_| format!("(no report within {REPORT:?})"));
        played = Err(anyhow::anyhow!("{error:#}\n{report}"));
    }
    let closed = within(STAGE, scene.close()).await.with_context(|| format!("clean up after {name}"));
    played.and_then(|outcome| closed.map(|()| outcome))
}

async fn within<T>(time: Duration, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::time::timeout(time, work)
        .await
        .unwrap_or_else(|_| Err(anyhow::anyhow!("it took longer than {time:?}")))
}
