//! Looks at a real kubelet, as root on its node, with what this crate has:
//!
//! ```sh
//! look pods SOCKET [FOLDER]    # tells the node's pods for ever; keeps each new pod's bytes in FOLDER
//! look watch NODE              # the same through the API server (KUBECONFIG)
//! look resources SOCKET        # the devices of all containers
//! look driver ROOT INSTANCE    # registers the driver; volumes are empty folders. Ends with an interrupt
//! ```

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gpu_handoff_kubelet::api::ApiServer;
use gpu_handoff_kubelet::csi::{self, Command, Refusal};
use gpu_handoff_kubelet::pods::{self, PodEvent};
use gpu_handoff_kubelet::{registration, resources};
use tokio::sync::watch;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::unwrap_used,
    reason = "generated code"
)]
mod wire {
    include!(concat!(env!("OUT_DIR"), "/v1alpha1.rs"));
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments: Vec<_> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pods", socket] => tell(Some(socket.into()), None).await,
        ["pods", socket, folder] => {
            keep(Path::new(socket), Path::new(folder)).await?;
            tell(Some(socket.into()), None).await
        }
        ["watch", node] => {
            let client = kube::Client::try_default().await?;
            tell(None, Some((client.into(), node.to_owned()))).await
        }
        ["resources", socket] => {
            let resources = resources::Resources::open(socket.into()).await?;
            for pod in resources.list().await? {
                println!("{pod:#?}");
                println!(
                    "asked for alone: {:?}",
                    resources.of_pod(&pod.namespace, &pod.name).await?.as_ref() == Some(&pod)
                );
            }
            println!("one that is not there: {:?}", resources.of_pod("default", "nobody").await?);
            Ok(())
        }
        ["driver", root, instance] => drive(Path::new(root), instance).await,
        _ => Err("pods SOCKET [FOLDER], watch NODE, resources SOCKET, driver ROOT INSTANCE".into()),
    }
}

async fn tell(socket: Option<PathBuf>, kube: Option<(ApiServer, String)>) -> Outcome {
    let began = Instant::now();
    let mut pods = pods::open(pods::Settings { socket, kube })?;
    while let Some(event) = pods.next().await {
        let at = began.elapsed().as_millis();
        match event {
            PodEvent::Added(facts) => println!("{at} ms added {facts:?}"),
            PodEvent::Changed(facts) => println!("{at} ms changed {facts:?}"),
            other => println!("{at} ms {other:?}"),
        }
    }
    Err("what follows the pods has broken".into())
}

async fn keep(socket: &Path, folder: &Path) -> Outcome {
    let channel =
        tonic::transport::Endpoint::try_from(format!("unix://{}", socket.display()))?.connect().await?;
    let mut client = wire::pods_client::PodsClient::new(channel);
    let listed = client.list_pods(wire::ListPodsRequest {}).await?.into_inner();
    for (which, bytes) in listed.pods.iter().enumerate() {
        fs::write(folder.join(format!("pod-{which}.pb")), bytes)?;
    }
    println!("{} pods kept", listed.pods.len());
    Ok(())
}

async fn drive(root: &Path, instance: &str) -> Outcome {
    let (sender, mut commands) = csi::queue();
    let (_ready, ready) = watch::channel(true);
    let socket = csi::socket_in(&root.join("plugins"));
    let (state, mut states) = watch::channel(registration::State::default());
    let settings = registration::Settings {
        folder: registration::folder_in(root),
        instance: instance.to_owned(),
        endpoint: socket.clone(),
    };
    let services = csi::Settings {
        socket,
        kubelet_root: root.to_owned(),
        node: "node".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        max_volumes: 3,
        ready,
    };
    let (stop, stopped) = watch::channel(());
    let stops = || {
        let mut stopped = stopped.clone();
        async move { drop(stopped.changed().await) }
    };
    let answers = async {
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Publish(publish, answer)) => {
                        println!("{publish:?}");
                        let made = fs::create_dir_all(&publish.target);
                        drop(answer.send(made.map_err(|error| Refusal::Internal(error.to_string()))));
                    }
                    Some(Command::Unpublish(unpublish, answer)) => {
                        println!("{unpublish:?}");
                        drop(fs::remove_dir(&unpublish.target));
                        drop(answer.send(Ok(())));
                    }
                    None => break,
                },
                Ok(()) = states.changed() => println!("{:?}", *states.borrow_and_update()),
                _ = tokio::signal::ctrl_c() => break,
            }
        }
        drop(stop);
    };
    let (services, registered, ()) = tokio::join!(
        csi::serve(services, sender, stops()),
        registration::serve(settings, state, stops()),
        answers
    );
    services?;
    registered?;
    Ok(())
}
