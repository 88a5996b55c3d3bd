//! `gpu-handoff-plugin webhook`, the program: it starts, answers, and ends when it is told to.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a failure is a failed test"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use gpu_handoff_webhook::certificates::Certificates;
use gpu_handoff_webhook::names;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gpu-handoff-plugin");
const HOST: &str = "gpu-handoff-webhook.gpu-handoff.svc";

/// Settings, a certificate and its key, in a folder.
struct Files {
    folder: TempDir,
    authority: String,
}

impl Files {
    fn new(settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificates = Certificates::make(HOST, SystemTime::now()).unwrap();
        let mut data = BTreeMap::new();
        certificates.put_into(&mut data);
        for name in ["tls.crt", "tls.key"] {
            fs::write(folder.path().join(name), &data[name].0).unwrap();
        }
        fs::write(folder.path().join("injection.yaml"), settings).unwrap();
        Self { folder, authority: certificates.authorities().to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["webhook", "--listen", "127.0.0.1:0", "--log-format", "json", "--settings"]);
        command.arg(self.path("injection.yaml"));
        command.arg("--tls-cert").arg(self.path("tls.crt")).arg("--tls-key").arg(self.path("tls.key"));
        command.stderr(Stdio::piped()).stdin(Stdio::null()).env_remove("GPU_HANDOFF_LOG");
        command
    }
}

/// The program, killed when it is dropped.
struct Running {
    child: Child,
    address: String,
    log: BufReader<ChildStderr>,
}

impl Running {
    fn start(files: &Files) -> Self {
        let mut child = files.command().spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if line["fields"]["message"] == "serving" {
                break line["fields"]["address"].as_str().unwrap().to_owned();
            }
        };
        Self { child, address, log }
    }

    fn signal(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
    }

    /// Its log to its end, and how it ended.
    fn ended(mut self) -> (String, bool) {
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        (log, self.child.wait().unwrap().success())
    }

    /// The answer to a request.
    fn ask(&self, files: &Files, request: &str) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(files.authority.as_bytes()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let host = ServerName::try_from(HOST).unwrap();
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), host).unwrap(), stream);
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n")
}

#[test]
fn it_answers_and_ends_when_it_is_told_to() {
    let files = Files::new("image: sidecar:1\n");
    let running = Running::start(&files);
    assert!(running.ask(&files, &get(names::READY_PATH)).starts_with("HTTP/1.1 200 "));
    let review = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"7",
        "kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},
        "namespace":"ml","operation":"CREATE","userInfo":{},"object":{"metadata":{"annotations":
        {"gpu-handoff.io/group":"a","gpu-handoff.io/colocate":"x"}},"spec":{"containers":[]}}}}"#;
    let request = format!(
        "POST /inject HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{review}",
        review.len()
    );
    let answer = running.ask(&files, &request);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("denied: BAD_VALUE"), "{answer}");
    running.signal();
    let (log, success) = running.ended();
    assert!(success && log.contains("\"denied\"") && log.contains("\"stopping\""), "{log}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let files = Files::new("image: sidecar:1\n");
    let mut running = Running::start(&files);
    running.signal();
    let mut line = String::new();
    running.log.read_line(&mut line).unwrap();
    assert!(line.contains("\"stopping\""), "{line}");
    let begin = SystemTime::now();
    running.signal();
    let (_, success) = running.ended();
    assert!(success && begin.elapsed().unwrap() < gpu_handoff_webhook::limits::LEAVE_TIME);
}

fn failure(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn what_it_cannot_begin_with_is_told_of() {
    let files = Files::new("image: sidecar:1\nimag: x\n");
    let (code, told) = failure(files.command());
    assert_eq!(code, Some(1));
    assert!(told.contains("injection.yaml cannot be read") && told.contains("line 2 column 1"), "{told}");
    fs::write(files.path("injection.yaml"), "image: sidecar:1\n").unwrap();
    fs::write(files.path("tls.key"), "x").unwrap();
    let (code, told) = failure(files.command());
    assert_eq!(code, Some(1));
    assert!(told.contains("tls.key"), "{told}");
    let mut command = Command::new(PROGRAM);
    command.args(["webhook", "--tls-cert", "x"]);
    let (code, told) = failure(command);
    assert_eq!(code, Some(2));
    assert!(told.contains("--tls-key"), "{told}");
}
