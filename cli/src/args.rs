//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Look at gpu-handoff from inside a pod: who the node takes you for, which buffers your group has, what happens to
/// them, and what a refusal means.
#[derive(Debug, Parser)]
#[command(name = "gpu-handoff", version, after_help = EXIT_CODES)]
pub struct Args {
    /// The pod's socket
    #[arg(long, global = true, env = "GPU_HANDOFF_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How a result is written; json of `watch`: one object a line; yaml for Kubernetes objects alone
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 well, 1 refused or findings, 2 usage or not everything could be checked, 3 daemon not reachable.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the buffers of this pod's group
    List,
    /// Show what happens to the buffers of this pod's group, until interrupted
    Watch,
    /// Show who the node takes this pod for
    Whoami,
    /// Explain the code of a refusal or denial, or list all codes; needs no daemon
    Explain {
        /// The code, such as NOT_FOUND, or its number
        code: Option<String>,
    },
    /// Show how this node is: its daemon, its members, its policy; for those who run it
    #[cfg(feature = "admin")]
    Status(crate::status::StatusArgs),
    /// Look for what is wrong with this node and with what gpu-handoff has in the cluster, and say what to do; exit code 1 if something
    /// is, 2 if something could not be looked at
    #[cfg(feature = "admin")]
    Doctor(crate::doctor::DoctorArgs),
    /// Add to pods what they ask for by their annotations, as the admission webhook does; needs no daemon
    #[cfg(feature = "inject")]
    Inject(crate::inject::InjectArgs),
    /// Check a policy, and ask what it says of two pods; needs no daemon
    #[cfg(feature = "policy")]
    Policy {
        /// What to do with it.
        #[command(subcommand)]
        command: crate::policy::PolicyCommand,
    },
}

/// How a result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people: sentences and tables.
    Text,
    /// For programs.
    Json,
    /// Kubernetes objects, a document for each.
    Yaml,
}

impl Format {
    /// The name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Yaml => "yaml",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_help_begins_with_what_the_command_is_for() {
        assert!(
            Args::command().render_help().to_string().starts_with("Look at gpu-handoff from inside a pod: ")
        );
    }
}
