//! `gpu-handoff whoami`: who the node takes this pod for.

use std::io::Write;

use gpu_handoff_client::Client;
use serde::Serialize;

use crate::args::Format;
use crate::failure::Failure;
use crate::output::{self, NamedJson};

#[derive(Serialize)]
struct WhoamiJson<'a> {
    pod: NamedJson<'a>,
    group: NamedJson<'a>,
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
        let value = WhoamiJson {
            pod: NamedJson::from(&welcome.pod),
            group: NamedJson::from(&welcome.group),
            node_boot: boot,
            protocol_version: version,
            legacy_pid_word_proven: proven,
        };
        return output::json(out, &value);
    }
    // Of exporter and importer; only the handles of `cudaMalloc` memory carry one.
    let equal_numbers = if proven {
        "can be cured for cudaMalloc memory on this node's driver"
    } else {
        "refused for cudaMalloc memory (no self-test has passed; none is run where the policy denies it): gpu-handoff explain PID_COLLISION"
    };
    let rows = [
        output::row(["pod", &welcome.pod.to_string()]),
        output::row(["group", &welcome.group.to_string()]),
        output::row(["node boot", &boot]),
        output::row(["protocol", &version]),
        output::row(["equal process numbers", equal_numbers]),
    ];
    Ok(output::table(out, &rows)?)
}
