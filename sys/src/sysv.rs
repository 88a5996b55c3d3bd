//! Shared memory segments, message queues and semaphore sets of System V, of the IPC namespace that the calling thread is in.

use std::io;

/// The three kinds of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A segment of shared memory.
    Segment,
    /// A queue of messages.
    Queue,
    /// A set of semaphores.
    Semaphores,
}

/// One of them, as the kernel lists it. Its number is not used again before tens of thousands of others were made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thing {
    /// What it is.
    pub kind: Kind,
    /// Its number in its namespace.
    pub id: i32,
    /// The process that made it, or whose number that was, by our PID namespace: of segments alone.
    pub maker: Option<u32>,
    /// The processes that used it last, as far as the list tells: that attached, sent and received.
    pub users: Vec<u32>,
    /// How often it is attached; of a segment.
    pub attached: u64,
    /// The bytes of a segment; those that lie in a queue; of semaphores their number.
    pub size: u64,
}

/// Where the kernel lists those of one kind, and in which columns.
struct List {
    kind: Kind,
    path: &'static str,
    maker: Option<&'static str>,
    users: &'static [&'static str],
    attached: Option<&'static str>,
    size: &'static str,
    id: &'static str,
}

const LISTS: [List; 3] = [
    List {
        kind: Kind::Segment,
        path: "/proc/sysvipc/shm",
        id: "shmid",
        maker: Some("cpid"),
        users: &["lpid"],
        attached: Some("nattch"),
        size: "size",
    },
    List {
        kind: Kind::Queue,
        path: "/proc/sysvipc/msg",
        id: "msqid",
        maker: None,
        users: &["lspid", "lrpid"],
        attached: None,
        size: "cbytes",
    },
    List {
        kind: Kind::Semaphores,
        path: "/proc/sysvipc/sem",
        id: "semid",
        maker: None,
        users: &[],
        attached: None,
        size: "nsems",
    },
];

/// All that there are in the namespace of this thread, up to `most` of each kind, and whether that was all.
///
/// # Errors
/// When `/proc/sysvipc` cannot be read, or does not read as it should.
pub fn list(most: usize) -> io::Result<(Vec<Thing>, bool)> {
    let (mut found, mut all) = (Vec::new(), true);
    for list in &LISTS {
        let text = std::fs::read_to_string(list.path)?;
        all &= parse(list, &text, most, &mut found)?;
    }
    Ok((found, all))
}

/// Reads one list; whether all of it was taken.
fn parse(list: &List, text: &str, most: usize, into: &mut Vec<Thing>) -> io::Result<bool> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", list.path));
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().ok_or_else(|| bad("empty"))?.split_whitespace().collect();
    let column = |name: &str| head.iter().position(|h| *h == name).ok_or_else(|| bad(name));
    let (id, size) = (column(list.id)?, column(list.size)?);
    let maker = list.maker.map(column).transpose()?;
    let attached = list.attached.map(column).transpose()?;
    let users = list.users.iter().map(|name| column(name)).collect::<Result<Vec<_>, _>>()?;
    for (taken, line) in lines.enumerate() {
        if taken == most {
            return Ok(false);
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| -> io::Result<u64> {
            fields.get(at).and_then(|field| field.parse().ok()).ok_or_else(|| bad(line))
        };
        // A process outside of our PID namespace is 0 here: nobody's number.
        let process = |at: usize| Ok::<_, io::Error>(u32::try_from(number(at)?).ok().filter(|pid| *pid != 0));
        let mut used_by = Vec::new();
        for at in &users {
            used_by.extend(process(*at)?);
        }
        into.push(Thing {
            kind: list.kind,
            id: i32::try_from(number(id)?).map_err(|_| bad(line))?,
            maker: maker.map(process).transpose()?.flatten(),
            users: used_by,
            attached: attached.map(number).transpose()?.unwrap_or(0),
            size: number(size)?,
        });
    }
    Ok(true)
}

/// Removes one from the namespace of this thread. A segment that is attached goes when it is not any more.
///
/// # Errors
/// What the kernel answers: that there is none (`EINVAL`, `EIDRM`), or that this user may not (`EPERM`).
pub fn remove(kind: Kind, id: i32) -> io::Result<()> {
    let done = match kind {
        // SAFETY: IPC_RMID reads and writes no buffer; the kernel ignores the third argument.
        Kind::Segment => unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) },
        // SAFETY: as above.
        Kind::Queue => unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) },
        // SAFETY: as above; no fourth argument is read for this command.
        Kind::Semaphores => unsafe { libc::semctl(id, 0, libc::IPC_RMID) },
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The processes that used the semaphores of a set last, one for each of the first `most` of them that was used, by our PID
/// namespace, and how many processes wait for one of these.
///
/// # Errors
/// What the kernel answers.
pub fn semaphore_users(id: i32, count: u64, most: u16) -> io::Result<(Vec<u32>, u64)> {
    let (mut users, mut waiting) = (Vec::new(), 0);
    let count = u16::try_from(count).unwrap_or(u16::MAX).min(most);
    for n in 0..i32::from(count) {
        let user = semaphore(id, n, libc::GETPID)?;
        users.extend(u32::try_from(user).ok().filter(|pid| *pid != 0));
        for command in [libc::GETNCNT, libc::GETZCNT] {
            waiting += u64::try_from(semaphore(id, n, command)?).unwrap_or(0);
        }
    }
    Ok((users, waiting))
}

fn semaphore(id: i32, n: i32, command: i32) -> io::Result<i32> {
    // SAFETY: GETPID, GETNCNT and GETZCNT, the commands that this is called with, take no fourth argument and touch no memory
    // of ours.
    let answer = unsafe { libc::semctl(id, n, command) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::apart;

    #[test]
    fn lists_are_read_by_their_heads_and_what_is_none_is_said() {
        let text = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n\
                    \x20        0          3   600                  4096  1234     0      2  1000  1000  1000  1000          0          0 1764500000                  4096                     0\n\
                    \x20        7      32772   666            4294967296     0    99      0     0     0     0     0          0          0 1764500000                     0                     0\n";
        let mut found = Vec::new();
        assert!(parse(&LISTS[0], text, 2, &mut found).unwrap());
        let one =
            Thing { kind: Kind::Segment, id: 3, maker: Some(1_234), users: vec![], attached: 2, size: 4_096 };
        let two =
            Thing { id: 32_772, maker: None, users: vec![99], attached: 0, size: 1 << 32, ..one.clone() };
        assert_eq!(found, [one, two]);
        found.clear();
        assert!(!parse(&LISTS[0], text, 1, &mut found).unwrap() && found.len() == 1, "there are more");
        for bad in ["", "key shmid\n", &text.replace("1234", "x")] {
            assert!(parse(&LISTS[0], bad, 9, &mut Vec::new()).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_made_is_listed_with_its_maker_and_users_and_is_gone_when_removed() {
        if !apart("sysv::tests::what_is_made_is_listed_with_its_maker_and_users_and_is_gone_when_removed") {
            return;
        }
        assert_eq!(list(16).unwrap(), (vec![], true), "the namespace is new");
        // SAFETY: these take numbers alone.
        let [segment, queue, semaphores] = unsafe {
            [
                libc::shmget(libc::IPC_PRIVATE, 8_192, 0o600),
                libc::msgget(libc::IPC_PRIVATE, 0o600),
                libc::semget(libc::IPC_PRIVATE, 3, 0o600),
            ]
        };
        let own = std::process::id();
        let mut message = libc::sembuf { sem_num: 1, sem_op: 1, sem_flg: 0 };
        // SAFETY: one operation is read, which lives.
        assert_eq!(unsafe { libc::semop(semaphores, &raw mut message, 1) }, 0);
        // SAFETY: a type and one byte are read, which live.
        assert_eq!(unsafe { libc::msgsnd(queue, [1_i64, 7].as_ptr().cast(), 1, 0) }, 0);
        let (found, all) = list(16).unwrap();
        assert!(all);
        let ids: Vec<_> = found.iter().map(|t| (t.kind, t.id, t.maker, t.size)).collect();
        let wanted = [
            (Kind::Segment, segment, Some(own), 8_192),
            (Kind::Queue, queue, None, 1),
            (Kind::Semaphores, semaphores, None, 3),
        ];
        assert_eq!(ids, wanted);
        assert_eq!(found[1].users, [own]);
        assert_eq!(semaphore_users(semaphores, 3, 8).unwrap(), (vec![own], 0));
        for (kind, id, ..) in wanted {
            remove(kind, id).unwrap();
            assert_eq!(remove(kind, id).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        }
        assert_eq!(list(16).unwrap(), (vec![], true));
        assert!(semaphore_users(semaphores, 3, 8).is_err());
    }
}
