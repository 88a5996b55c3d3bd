//! The way of words from broker to node: a pipe, a line for each. No descriptor comes through a pipe, so nothing of a broker that was
//! taken over is ever closed by the node, whose one thread would wait for whatever that waits for.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use gpu_handoff_protocol::limits as wire;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::FromBroker;
use crate::limits;

/// The broker's end. What finds no room in the pipe waits here, so that the broker goes on reading what the node says.
#[derive(Debug)]
pub struct Mouth {
    pipe: Sender,
    unsaid: VecDeque<Vec<u8>>,
    /// Bytes of the first of them that are said.
    said: usize,
}

impl Mouth {
    /// Over this end of a pipe.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(pipe: OwnedFd) -> io::Result<Self> {
        Ok(Self { pipe: Sender::from_owned_fd(pipe)?, unsaid: VecDeque::new(), said: 0 })
    }

    /// Whether more may be said: not much waits to be.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.unsaid.len() < limits::NODE_WORDS
    }

    /// Says a word: at once, or by [`go_on`](Self::go_on). Never waits.
    ///
    /// # Errors
    /// When nobody hears any more.
    pub fn say(&mut self, word: &FromBroker) -> io::Result<()> {
        let mut line = serde_json::to_vec(word)?;
        line.push(b'\n');
        self.unsaid.push_back(line);
        match self.say_some() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            said => said,
        }
    }

    /// Says more of what waits when there is room; never comes back where nothing waits. Safe to cancel.
    ///
    /// # Errors
    /// When nobody hears any more.
    pub async fn go_on(&mut self) -> io::Result<()> {
        if self.unsaid.is_empty() {
            return std::future::pending().await;
        }
        loop {
            self.pipe.writable().await?;
            match self.say_some() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                said => return said,
            }
        }
    }

    fn say_some(&mut self) -> io::Result<()> {
        while let Some(line) = self.unsaid.front() {
            self.said += self.pipe.try_write(&line[self.said..])?;
            if self.said == line.len() {
                self.unsaid.pop_front();
                self.said = 0;
            }
        }
        Ok(())
    }
}

/// The node's end.
#[derive(Debug)]
pub(in crate::node) struct Ear {
    pipe: BufReader<Receiver>,
    line: Vec<u8>,
}

impl Ear {
    /// Over this end of a pipe.
    pub(in crate::node) fn new(pipe: OwnedFd) -> io::Result<Self> {
        Ok(Self { pipe: BufReader::new(Receiver::from_owned_fd(pipe)?), line: Vec::new() })
    }

    /// The next word; `None`: there is nobody to say one. Safe to cancel.
    ///
    /// # Errors
    /// `InvalidData`: it is longer than words are.
    pub(in crate::node) async fn hear(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let there = self.pipe.fill_buf().await?;
            if there.is_empty() {
                return Ok(None);
            }
            let end = there.iter().position(|byte| *byte == b'\n');
            let part = &there[..end.unwrap_or(there.len())];
            if self.line.len() + part.len() > wire::MESSAGE_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.line.extend_from_slice(part);
            let taken = end.map_or(there.len(), |end| end + 1);
            self.pipe.consume(taken);
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn pipe() -> (Ear, std::io::PipeWriter) {
        let (reader, writer) = std::io::pipe().unwrap();
        (Ear::new(reader.into()).unwrap(), writer)
    }

    #[tokio::test]
    async fn words_come_whole_however_they_were_written_and_none_without_end() {
        let (mut ear, mut writer) = pipe();
        writer.write_all(b"one\n\ntw").unwrap();
        assert_eq!(ear.hear().await.unwrap().unwrap(), b"one");
        assert_eq!(ear.hear().await.unwrap().unwrap(), b"");
        tokio::select! {
            biased;
            heard = ear.hear() => panic!("{heard:?}"),
            () = tokio::task::yield_now() => {}
        }
        writer.write_all(b"o\n").unwrap();
        assert_eq!(ear.hear().await.unwrap().unwrap(), b"two");
        // What is cut off by the end is no word.
        writer.write_all(b"thr").unwrap();
        drop(writer);
        assert_eq!(ear.hear().await.unwrap(), None);
        let (mut ear, mut writer) = pipe();
        let flood = std::thread::spawn(move || while writer.write_all(&[b'x'; 4096]).is_ok() {});
        assert_eq!(ear.hear().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(ear.line.len() <= wire::MESSAGE_BYTES);
        drop(ear);
        flood.join().unwrap();
    }

    #[tokio::test]
    async fn what_finds_no_room_waits_in_order_and_nobody_waits_for_it() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (mut ear, mut mouth) = (Ear::new(reader.into()).unwrap(), Mouth::new(writer.into()).unwrap());
        let mut said = 0;
        while mouth.has_room() {
            let slot = format!("s{said}").parse().unwrap();
            mouth.say(&FromBroker::Unserved { slot, with: None }).unwrap();
            said += 1;
        }
        assert!(said >= limits::NODE_WORDS, "{said}");
        for i in 0..said {
            let word = loop {
                tokio::select! {
                    word = ear.hear() => break word.unwrap().unwrap(),
                    done = mouth.go_on() => done.unwrap(),
                }
            };
            let wanted = format!("s{i}");
            assert!(
                matches!(serde_json::from_slice(&word).unwrap(), FromBroker::Unserved { slot, .. } if slot.as_str() == wanted)
            );
        }
        drop(ear);
        assert!(mouth.say(&FromBroker::Ready).is_err());
    }
}
