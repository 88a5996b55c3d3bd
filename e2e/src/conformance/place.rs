//! Where a puppet runs: which of its namespaces, user and capabilities are not the suite's own.

use std::path::Path;
use std::process::Command;

/// What a puppet has apart from the others.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Place {
    /// A name for rows.
    pub(crate) name: &'static str,
    /// Flags for `unshare`, none for no namespace of its own.
    unshare: &'static [&'static str],
    /// A fresh `/dev/shm`, in a mount namespace of its own.
    own_dev_shm: bool,
    /// Under a shell that takes the first process number of the PID namespace.
    second: bool,
    /// Minor number of a GPU whose device node is missing, in a mount namespace of its own.
    hidden_node: Option<u32>,
    /// Flags for `setpriv`.
    setpriv: &'static [&'static str],
    /// Variables of its environment.
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// Where the simulated driver's processes meet. Its default is in `/dev/shm`, which some places replace, and belongs to
/// one user; a real driver does not look at this.
const MEETING: &str = "SIMCUDA_DIR";

/// Runs the rest without the node of the GPU with the minor number that comes first. The driver makes a missing node itself where it may,
/// so `/dev` becomes one that cannot be written.
const HIDE_NODE: &str = r#"
minor=$0
if [ -n "${SIMCUDA_DIR:-}" ] && [ -d "$SIMCUDA_DIR/dev" ]; then
    mount --bind "$SIMCUDA_DIR/dev" /mnt
    mount -t tmpfs t "$SIMCUDA_DIR/dev"
    for node in /mnt/*; do
        name=${node##*/}
        if [ "$name" != "nvidia$minor" ]; then
            : > "$SIMCUDA_DIR/dev/$name"
            mount --bind "$node" "$SIMCUDA_DIR/dev/$name"
        fi
    done
fi
if [ -e /dev/nvidiactl ]; then
    mount -t tmpfs t /mnt
    cp -a /dev/nvidia* /dev/null /dev/zero /dev/urandom /dev/random /mnt
    mkdir /mnt/shm
    mount --bind /dev/shm /mnt/shm
    rm -f "/mnt/nvidia$minor"
    mount --rbind /mnt /dev
    mount -o remount,bind,ro /dev
fi
exec "$@"
"#;

const PID: [&str; 3] = ["-p", "-f", "--mount-proc"];

impl Place {
    /// As the suite itself.
    pub(crate) fn here() -> Place {
        Place { name: "same", ..Place::default() }
    }

    /// A PID namespace of its own, in which it is process 1.
    pub(crate) fn pid() -> Place {
        Place { name: "pid", unshare: &PID, ..Place::default() }
    }

    /// A PID namespace of its own, in which it is process 2.
    pub(crate) fn pid_second() -> Place {
        Place { name: "pid-second", second: true, ..Place::pid() }
    }

    /// Without the device node of a GPU.
    pub(crate) fn without_node(minor: u32) -> Place {
        Place { name: "hidden-node", unshare: &["-m"], hidden_node: Some(minor), ..Place::default() }
    }

    /// IPC and network namespaces of its own.
    pub(crate) fn ipc_net() -> Place {
        Place { name: "ipc-net", unshare: &["-i", "-n"], ..Place::default() }
    }

    /// With a variable set.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Place {
        self.environment.push((name, value.into()));
        self
    }

    /// The importers of the matrix: one difference each, and all of them at once.
    pub(crate) fn matrix() -> Vec<Place> {
        let place = |name, unshare: &'static [&'static str]| Place { name, unshare, ..Place::default() };
        vec![
            Place::here(),
            place("ipc", &["-i"]),
            Place::pid(),
            place("net", &["-n"]),
            Place { own_dev_shm: true, ..place("mnt-devshm", &["-m"]) },
            place("uts", &["-u"]),
            place("user", &["-U", "-r"]),
            Place {
                name: "uid",
                setpriv: &["--reuid", "1000", "--regid", "1000", "--clear-groups"],
                ..Place::default()
            },
            Place {
                name: "no-caps",
                setpriv: &["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"],
                ..Place::default()
            },
            Place {
                own_dev_shm: true,
                ..place("all", &["-m", "-i", "-n", "-u", "-p", "-f", "--mount-proc"])
            },
        ]
    }

    /// The command that runs `program` there. Programs of util-linux do the work, since a bare machine has those.
    pub(crate) fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut words: Vec<String> = Vec::new();
        if !self.unshare.is_empty() {
            words.push("unshare".into());
            words.extend(self.unshare.iter().map(|flag| (*flag).to_owned()));
            if self.unshare.contains(&"-f") {
                words.push("--kill-child".into());
            }
        }
        if self.own_dev_shm {
            words.extend(["sh", "-c", "mount -t tmpfs t /dev/shm && exec \"$0\" \"$@\""].map(String::from));
        }
        if self.second {
            words.extend(["sh", "-c", "\"$0\" \"$@\"; true"].map(String::from));
        }
        if let Some(minor) = self.hidden_node {
            words.extend(["sh", "-ec", HIDE_NODE].map(String::from));
            words.push(minor.to_string());
        }
        if !self.setpriv.is_empty() {
            words.push("setpriv".into());
            words.extend(self.setpriv.iter().map(|flag| (*flag).to_owned()));
        }
        words.push(program.display().to_string());
        words.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = program.parent().filter(|_| std::env::var_os(MEETING).is_none()) {
            command.env(MEETING, folder.join("simulated"));
        }
        command
    }

    /// Tries the wrappers alone: why nothing can run there, if it cannot.
    pub(crate) fn check(&self) -> Result<(), String> {
        let output = self.command(Path::new("true"), &[]).output();
        match output {
            Err(error) => {
                Err(format!("{}: {error}", self.command(Path::new("true"), &[]).get_program().display()))
            }
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr)
                .lines()
                .next()
                .unwrap_or("no reason given")
                .to_owned()),
        }
    }
}
