//! One PID namespace for all containers of the pod: in a container of its own the main process has the number 1, whatever
//! numbers the pod is given.

use serde_json::json;

use crate::denial::Denial;
use crate::edit::{Edit, at};
use crate::wishes::Wishes;
use crate::words::Pids;

/// A pod that says something else keeps it, and its user is warned.
pub(super) fn add(wishes: &Wishes, edit: &mut Edit) -> Result<(), Denial> {
    match wishes.pids {
        Pids::Own => Ok(()),
        Pids::Distinct => edit.complete(&at(["spec"]), json!({ "shareProcessNamespace": true })),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::*;
    use crate::pod::Pod;
    use crate::warnings;

    fn with(pids: Pids, spec: &Value) -> (Value, Vec<String>) {
        let annotations = BTreeMap::from([("gpu-handoff.io/group".to_owned(), "g".to_owned())]);
        let wishes = Wishes::read(&annotations, &BTreeMap::new(), &"n".parse().unwrap()).unwrap().unwrap();
        let wishes = Wishes { pids, ..wishes };
        let object = json!({ "spec": spec });
        let warnings = warnings::of_member(&Pod::read(&object).unwrap(), &wishes);
        let mut edit = Edit::new(object);
        add(&wishes, &mut edit).unwrap();
        (edit.into_parts().0["spec"].clone(), warnings)
    }

    #[test]
    fn who_asks_for_numbers_has_one_namespace_and_nobody_else() {
        let spec = json!({ "containers": [] });
        assert_eq!(with(Pids::Own, &spec), (spec.clone(), vec![]));
        let shared = json!({ "containers": [], "shareProcessNamespace": true });
        assert_eq!(with(Pids::Distinct, &spec), (shared.clone(), vec![]));
        assert_eq!(with(Pids::Distinct, &shared), (shared, vec![]));
        let unset = json!({ "containers": [], "shareProcessNamespace": null });
        assert_eq!(with(Pids::Distinct, &unset).0["shareProcessNamespace"], true);
    }

    #[test]
    fn who_says_that_it_has_several_keeps_them_and_is_told_what_does_not_work() {
        let own = json!({ "shareProcessNamespace": false });
        assert_eq!(with(Pids::Own, &own), (own.clone(), vec![]));
        let (spec, warnings) = with(Pids::Distinct, &own);
        assert_eq!(spec, own);
        assert!(warnings.len() == 1 && warnings[0].contains("shareProcessNamespace: false"), "{warnings:?}");
    }
}
