//! `gpu-handoff whoami`: who the node takes this pod for.

use std::io::Write;

use gpu_handoff_client::Client;
use serde::Serialize;

use crate::args::Format;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct WhoamiJson<'a> {
    pod_namespace: &'a str,
    pod_name: &'a str,
    group_namespace: &'a str,
    group_name: &'a str,
    node_boot: String,
    protocol_version: String,
    legacy_pid_word_proven: bool,
}

pub(crate) fn run(client: &Client, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let welcome = client.welcome();
    let boot = format!("{:016x}", welcome.boot.0);
    let version = format!("{}.{}", welcome.version.0, welcome.version.1);
    let proven = welcome.legacy_pid_word_proven;
    if format == Format::Json {
        let (pod, group) = (&welcome.pod, &welcome.group);
        let value = WhoamiJson {
            pod_namespace: pod.namespace.as_str(),
            pod_name: pod.name.as_str(),
            group_namespace: group.namespace.as_str(),
            group_name: group.name.as_str(),
            node_boot: boot,
            protocol_version: version,
            legacy_pid_word_proven: proven,
        };
        return output::json(out, &value);
    }
    let legacy =
        if proven { "importable between equal process numbers" } else { "need different process numbers" };
    let rows = [
        output::row(["pod", &welcome.pod.to_string()]),
        output::row(["group", &welcome.group.to_string()]),
        output::row(["node boot", &boot]),
        output::row(["protocol", &version]),
        output::row(["legacy buffers", legacy]),
    ];
    Ok(output::table(out, &rows)?)
}
