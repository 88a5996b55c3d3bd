use super::*;

const HOST: &str = "gpu-handoff-webhook.gpu-handoff.svc";
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn start() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn made() -> Certificates {
    Certificates::make(HOST, start()).unwrap()
}

fn due(all: &Certificates, now: SystemTime) -> Option<What> {
    all.due(HOST, now).map(|due| due.what)
}

/// Whether a client that trusts these authorities accepts that serving certificate.
fn is_trusted(authorities: &Certificates, serving: &Certificates) -> bool {
    let authorities = certificates(authorities.authorities().as_bytes()).unwrap();
    verify(&serving.serving().unwrap(), &authorities, HOST).is_ok()
}

#[test]
fn what_was_just_made_is_good_and_not_due() {
    let all = made();
    assert_eq!(all.due(HOST, start()), None);
    let serving = all.serving().unwrap();
    assert_eq!(serving.from(), start() - limits::BACKDATED);
    assert_eq!(serving.until(), start() + limits::SERVING_LIFE);
    let mut data = BTreeMap::from([("other".to_owned(), ByteString(vec![1]))]);
    all.put_into(&mut data);
    assert_eq!(data.len(), 5);
    assert_eq!(Certificates::from_data(&data), Some(all));
}

#[test]
fn a_clock_that_is_behind_makes_nothing_anew() {
    assert_eq!(due(&made(), start() - 10 * DAY), None);
}

#[test]
fn a_serving_certificate_is_renewed_in_time_under_the_same_authority() {
    let all = made();
    let day = start() + limits::SERVING_LIFE - limits::SERVING_RENEWAL;
    assert_eq!(due(&all, day - DAY), None);
    assert_eq!(due(&all, day), Some(What::Serving));
    let renewed = all.renewed(What::Serving, HOST, day).unwrap();
    assert_eq!(due(&renewed, day), None);
    assert_eq!(renewed.authorities(), all.authorities());
    assert!(is_trusted(&all, &renewed));
    assert_eq!(renewed.serving().unwrap().until(), day + limits::SERVING_LIFE);
}

#[test]
fn at_every_step_of_ten_years_and_more_what_is_served_was_trusted_a_day_before() {
    let mut history = vec![made()];
    let mut now = start();
    let mut made_anew = Vec::new();
    while now < start() + limits::AUTHORITY_LIFE + 2 * limits::AUTHORITY_RENEWAL {
        now += DAY;
        let mut current = history.last().unwrap().clone();
        while let Some(Due { what, .. }) = current.due(HOST, now) {
            made_anew.push(what);
            current = current.renewed(what, HOST, now).unwrap();
        }
        assert!(
            current.serving().unwrap().until() > now + limits::SERVING_RENEWAL - 2 * DAY,
            "served too long"
        );
        assert!(is_trusted(history.last().unwrap(), &current), "nobody could have heard of it");
        history.push(current);
    }
    let authorities = made_anew.iter().filter(|what| **what == What::Authority).count();
    assert_eq!((authorities, made_anew.contains(&What::All)), (1, false));
    let last = history.last().unwrap();
    assert!(
        certificates(last.authorities().as_bytes()).unwrap().len() == 2,
        "a new one and one that has expired"
    );
}

#[test]
fn a_new_authority_signs_nothing_until_it_has_settled() {
    let all = made();
    let day = start() + limits::AUTHORITY_LIFE - limits::AUTHORITY_RENEWAL;
    // Just before, the serving certificate was renewed; it is due again sixty days later.
    let all = all.renewed(What::Serving, HOST, day - limits::SERVING_LIFE + limits::SERVING_RENEWAL).unwrap();
    assert_eq!(due(&all, day), Some(What::Authority));
    let with_both = all.renewed(What::Authority, HOST, day).unwrap();
    assert!(is_trusted(&with_both, &all));
    assert_eq!(due(&with_both, day), None, "it is due, and waits");
    let settled = day + limits::AUTHORITY_SETTLES;
    assert_eq!(due(&with_both, settled), Some(What::Serving));
    let renewed = with_both.renewed(What::Serving, HOST, settled).unwrap();
    assert!(is_trusted(&with_both, &renewed));
    assert!(!is_trusted(&all, &renewed), "it is signed by the new one");
}

#[test]
fn what_has_expired_is_made_anew_though_late() {
    let all = made();
    assert_eq!(due(&all, start() + limits::SERVING_LIFE), Some(What::Serving));
    let late = start() + limits::AUTHORITY_LIFE;
    assert_eq!(due(&all, late), Some(What::All));
    let renewed = all.renewed(What::All, HOST, late).unwrap();
    assert_eq!(due(&renewed, late), None);
    assert!(!is_trusted(&all, &renewed));
}

#[test]
fn what_cannot_be_used_is_made_anew() {
    let (all, other) = (made(), made());
    let table: [(&str, Certificates); 6] = [
        ("another authority", Certificates { authorities: other.authorities.clone(), ..all.clone() }),
        ("another key", Certificates { serving_key: other.serving_key.clone(), ..all.clone() }),
        ("no authority", Certificates { authorities: String::new(), ..all.clone() }),
        ("garbage", Certificates { serving: "x".to_owned(), ..all.clone() }),
        ("half", Certificates { serving: all.serving[..400].to_owned(), ..all.clone() }),
        ("too many", Certificates { authorities: all.authorities.repeat(5), ..all.clone() }),
    ];
    for (name, broken) in table {
        assert_eq!(due(&broken, start()), Some(What::All), "{name}");
    }
    assert_eq!(all.due("another.host.svc", start()).map(|due| due.what), Some(What::All));
    for key in [other.authority_key.clone(), "x".to_owned()] {
        let without_key = Certificates { authority_key: key, ..all.clone() };
        assert_eq!(due(&without_key, start()), Some(What::Authority));
        let renewed = without_key.renewed(What::Authority, HOST, start()).unwrap();
        assert_eq!(due(&renewed, start()), None);
        assert!(is_trusted(&renewed, &all));
    }
}

#[test]
fn authorities_do_not_pile_up() {
    let mut all = made();
    for _ in 0..2 * limits::AUTHORITIES {
        all = all.renewed(What::Authority, HOST, start()).unwrap();
    }
    assert_eq!(certificates(all.authorities().as_bytes()).unwrap().len(), limits::AUTHORITIES);
}

#[test]
fn keys_are_not_shown() {
    let all = made();
    let shown = format!("{all:?} {:?}", all.serving().unwrap());
    assert!(!shown.contains("BEGIN") && !shown.contains("key"), "{shown}");
}
