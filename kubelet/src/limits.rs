//! The crate's limits, each named with its unit.

use std::time::Duration;

/// Bytes of a socket's path: what fits into the kernel's address, less its final zero.
pub const SOCKET_PATH_BYTES: usize = 107;
/// How often it is looked whether our sockets are still where they were made: a kubelet that starts, or whoever cleans its
/// folder, may have removed them.
pub const SOCKET_LOOK: Duration = Duration::from_millis(500);
/// How long nobody is accepted after that failed, mostly for want of descriptors.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long calls that are being answered may take to end once the server is told to stop.
pub const DRAIN_TIME: Duration = Duration::from_secs(5);
/// How long a server may take for any call, in all.
pub const CALL_TIME: Duration = Duration::from_secs(60);
/// Calls that one connection may have open at a time.
pub const CALLS_PER_CONNECTION: u32 = 32;
/// Bytes of a request to our servers: a volume context is bounded by a pod's size, what we accept is far below.
pub const REQUEST_BYTES: usize = 256 << 10;
/// Bytes of all headers of a call.
pub const HEADER_BYTES: u32 = 16 << 10;

/// Bytes of the hash of an instance's name that its registration socket is named by, in twice as many digits: so few that a
/// root folder of the kubelet's may have 48 bytes, and so many that no two instances have the same.
pub const INSTANCE_HASH_BYTES: usize = 8;
/// Bytes of what the kubelet says of a registration, as it is kept.
pub const TOLD_BYTES: usize = 1 << 10;

/// Commands that may wait for whoever does them; one more is answered "not yet", and the kubelet comes back.
pub const COMMANDS: usize = 128;
/// How long a command may take before the kubelet hears "not yet": less than the two minutes it waits itself.
pub const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Bytes of a volume's id (CSI's own limit).
pub const VOLUME_ID_BYTES: usize = 128;
/// Bytes of a target path: what the kernel takes, less its final zero. (CSI asks for 128 at least.)
pub const TARGET_PATH_BYTES: usize = 4_095;
/// Bytes of a pod's UID: a UUID has 36; static pods may have others.
pub const POD_UID_BYTES: usize = 64;
/// Bytes of a name that is a DNS label.
pub const LABEL_NAME_BYTES: usize = 63;
/// Bytes of a name that is a DNS subdomain.
pub const SUBDOMAIN_BYTES: usize = 253;
/// Bytes of a refusal's text, as it is sent to the kubelet, which shows it in an event.
pub const REFUSAL_BYTES: usize = 900;

/// Pods of a node that are followed; more are left out, which the log says. A kubelet takes 110 unless configured otherwise.
pub const PODS: usize = 4_096;
/// Bytes of one pod as the kubelet or the API server sends it: etcd takes 1.5 MiB.
pub const POD_BYTES: usize = 4 << 20;
/// Containers of a pod that are kept.
pub const CONTAINERS: usize = 512;
/// Labels of a pod that are kept.
pub const LABELS: usize = 256;
/// Bytes of a pod's labels that are kept, keys and values.
pub const LABELS_BYTES: usize = 32 << 10;
/// Annotations of ours at a pod that are kept.
pub const ANNOTATIONS: usize = 64;
/// Bytes of a pod's annotations of ours that are kept, keys and values.
pub const ANNOTATIONS_BYTES: usize = 16 << 10;
/// Bytes of a container's id that are kept; more is no id.
pub const CONTAINER_ID_BYTES: usize = 256;
/// Events about pods that may wait for their reader. More wait at their source, which is asked anew where it does not wait.
pub const POD_EVENTS: usize = 256;
/// How long a source may take to name all pods that there are.
pub const SYNC_TIME: Duration = Duration::from_secs(30);
/// How long connecting to a socket of the kubelet may take.
pub const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How often the kubelet is asked for all pods anew, though its stream goes on: it drops events where its own queue is full.
pub const RESYNC_PERIOD: Duration = Duration::from_secs(300);
/// How long one source of pods may be away before another is asked, where there is one.
pub const SOURCE_PATIENCE: Duration = Duration::from_secs(30);
/// The first pause before the kubelet is asked again; doubled each time.
pub const KUBELET_FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause before the kubelet is asked again: a socket of this node, and what waits for a pod waits for this.
pub const KUBELET_LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The first pause before the API server is asked again; doubled each time.
pub const API_FIRST_PAUSE: Duration = Duration::from_millis(800);
/// The longest pause before the API server is asked again.
pub const API_LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Pods that the API server sends at a time when it names all.
pub const API_PAGE: u32 = 100;

/// Most characters of who reports an event, by the API's rules.
pub const EVENT_INSTANCE_CHARS: usize = 128;
/// How long the API server may take for an event.
pub const EVENT_TIME: Duration = Duration::from_secs(5);
/// ResourceSlices that the API server sends at a time.
pub const SLICES_PAGE: u32 = 100;
/// Most such pages of a node.
pub const SLICES_PAGES: u32 = 10;
/// Pods with a label that are looked for.
pub const LABELLED_PODS: u32 = 100;

/// Bytes of the kubelet's answer about the devices of all pods.
pub const RESOURCES_BYTES: usize = 16 << 20;
/// How long the kubelet may take for a question about devices.
pub const RESOURCES_TIME: Duration = Duration::from_secs(10);
