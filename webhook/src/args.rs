//! The command line of `gpu-handoff-plugin webhook`.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::serve::{Config, Tls};

/// How the webhook is set up.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where it listens.
    #[arg(long, env = "GPU_HANDOFF_WEBHOOK_LISTEN", default_value = "[::]:9443")]
    pub listen: SocketAddr,
    /// The settings of the injection, read again when they change: docs/annotations.md lists them.
    #[arg(long, env = "GPU_HANDOFF_WEBHOOK_SETTINGS", default_value = "/etc/gpu-handoff/injection.yaml")]
    pub settings: PathBuf,
    /// The policy of the nodes, read again when it changes: it says which pods may name a group of another namespace. Default: none may.
    #[arg(long, env = "GPU_HANDOFF_POLICY")]
    pub policy: Option<PathBuf>,
    /// The namespace of its Service, and of the Secret with the certificates that it makes for itself.
    #[arg(long, env = "GPU_HANDOFF_NAMESPACE", default_value = "gpu-handoff")]
    pub namespace: String,
    /// A certificate that somebody else makes, read again when it changes. Then nothing is asked of the API server, and whoever
    /// makes it also tells the API server to trust it.
    #[arg(long, env = "GPU_HANDOFF_WEBHOOK_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, env = "GPU_HANDOFF_WEBHOOK_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        let Args { listen, settings, policy, namespace, tls_cert, tls_key } = args;
        // The parser lets neither come alone.
        let tls = match tls_cert.zip(tls_key) {
            Some((certificate, key)) => Tls::Files { certificate, key },
            None => Tls::Own { namespace, client: None },
        };
        Self { listen, settings, policy, tls }
    }
}
