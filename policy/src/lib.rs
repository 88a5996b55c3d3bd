//! Who may publish and acquire what: the policy of gpu-handoff as plain data and pure decisions.
//!
//! Default deny: two pods may exchange buffers when they are of one namespace and members of the same group; everything
//! beyond that has to be granted here. `docs/policy.md` lists every key.
//!
//! | concern | file |
//! |---|---|
//! | the whole of it | [`Policy`] |
//! | values that are one of a few words | `words` |
//! | who asks, and for what by a pod's annotations | `party` |
//! | who may exchange with whom | `exchange` |
//! | why not, and what would have to be written | `gap` |
//! | how much one may hold | `quota` |
//! | how large the `/dev/shm` of groups may be | `shm` |
//! | what namespaces and groups have of their own | `terms` |
//! | the decisions | `decide` |
//! | what it may grant and this version does not do | `not_yet` |
//! | bytes and times as people write them; lists and maps with a limit | `amount`, `bounded` |
//! | from text, with line and column of what is wrong | `read` |
//! | bytes as a text; as much of YAML as policies and settings need | `plain` |
//! | the signs of YAML, as its reader finds them | `signs` |
//! | files that may become other ones | `files` |
//! | every limit, with its unit | [`limits`] |

mod amount;
mod bounded;
mod decide;
mod exchange;
mod files;
mod gap;
pub mod limits;
mod not_yet;
mod party;
mod plain;
mod policy;
mod quota;
mod read;
mod shm;
mod signs;
mod terms;
#[cfg(test)]
mod tests;
mod words;

pub use exchange::{Exchange, GroupRef, Rule, RuleName, Side};
pub use files::{Contents, FileError, Files, open_regular};
pub use gap::{Almost, Differs, Gap};
pub use party::{Asks, Party};
pub use plain::{Subject, as_text, read_plain};
pub use policy::Policy;
pub use quota::{GroupQuota, GroupQuotaChange, Held, Quota, QuotaChange, Usage};
pub use read::{Place, PolicyError};
pub use shm::{NodeMemory, Share, ShmTerms, ShmTermsChange};
pub use signs::{Sign, signs};
pub use terms::{GroupTerms, NamespaceTerms};
pub use words::{
    Devices, FailureRule, GrantedKind, LegacyRule, OnFailure, Orphans, Profile, Unadjusted, Version,
};
