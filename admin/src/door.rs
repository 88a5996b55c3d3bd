//! Who may ask: root, the daemon's own user, and one group.

use std::fmt;

use gpu_handoff_sys::peer::Credentials;

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Door {
    /// The user that the daemon runs as.
    pub own: u32,
    /// The group whose members may ask, too.
    pub group: Option<u32>,
}

/// Somebody who may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// Who it was when it connected.
    pub who: Credentials,
    /// Who may ask.
    pub door: Door,
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Credentials { uid, gid, groups } = &self.who;
        write!(f, "user {uid} of group {gid}, and of {} others, may not ask: {}", groups.len(), self.door)
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("root may")?;
        if self.own != 0 {
            write!(f, ", user {}", self.own)?;
        }
        match self.group {
            Some(group) => write!(f, ", and members of group {group}"),
            None => f.write_str(", and no group (--admin-group)"),
        }
    }
}

impl Door {
    /// The mode of the socket's file.
    pub(crate) const fn mode(self) -> u32 {
        if self.group.is_some() { 0o660 } else { 0o600 }
    }

    /// Lets somebody in, or not.
    ///
    /// # Errors
    /// Who it was.
    pub fn admit(self, who: &Credentials) -> Result<(), Stranger> {
        let is_member = |group: u32| who.gid == group || who.groups.contains(&group);
        if who.uid == 0 || who.uid == self.own || self.group.is_some_and(is_member) {
            Ok(())
        } else {
            Err(Stranger { who: who.clone(), door: self })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn root_the_own_user_and_the_group_are_let_in_and_nobody_else() {
        let closed = Door { own: 1_000, group: None };
        assert!(closed.admit(&who(0, 0, &[])).is_ok() && closed.admit(&who(1_000, 5, &[])).is_ok());
        assert!(closed.admit(&who(7, 0, &[0])).is_err(), "root's group is no right");
        let open = Door { own: 0, group: Some(44) };
        assert!(open.admit(&who(7, 44, &[])).is_ok() && open.admit(&who(7, 8, &[9, 44])).is_ok());
        let told = open.admit(&who(7, 8, &[9])).unwrap_err().to_string();
        assert_eq!(
            told,
            "user 7 of group 8, and of 1 others, may not ask: root may, and members of group 44"
        );
        assert_eq!((closed.mode(), open.mode()), (0o600, 0o660));
    }
}
