//! What names are accepted, and that they survive text and wire.

use proptest::prelude::*;

use super::*;

#[test]
fn text_ids_refuse_what_is_empty_long_or_strange() {
    assert_eq!(Namespace::new("ml-team").unwrap().as_str(), "ml-team");
    assert_eq!(Namespace::new(""), Err(IdError::Empty { what: "namespace" }));
    assert!(matches!(Namespace::new("A"), Err(IdError::Character { found: 'A', .. })));
    assert!(matches!(
        BufferName::new("x".repeat(limits::BUFFER_NAME_BYTES + 1)),
        Err(IdError::TooLong { .. })
    ));
    assert!(matches!(BufferName::new("a b"), Err(IdError::Character { found: ' ', .. })));
    assert!(matches!(SlotId::new("../x"), Err(IdError::Character { found: '.', .. })));
}

#[test]
fn a_device_uuid_reads_what_the_driver_and_kubernetes_write() {
    let text = "GPU-01234567-89ab-cdef-0123-456789abcdef";
    let uuid: DeviceUuid = text.parse().unwrap();
    assert_eq!(uuid.to_string(), text);
    assert_eq!("MIG-01234567-89ab-cdef-0123-456789abcdef".parse(), Ok(uuid));
    assert!("GPU-0123".parse::<DeviceUuid>().is_err());
    assert!("GPU-01234567-89ab-cdef-0123-456789abcdeg".parse::<DeviceUuid>().is_err());
}

#[test]
fn a_boot_tag_needs_a_uuid() {
    assert_eq!(BootTag::from_boot_id("00000000-0000-0001-8f2e-0a1b2c3d4e5f\n"), Ok(BootTag(1)));
    assert!(BootTag::from_boot_id("none").is_err());
}

proptest! {
    #[test]
    fn a_buffer_id_survives_text_and_wire(boot: u64, random: u128) {
        let id = BufferId { boot: BootTag(boot), random };
        prop_assert_eq!(id.to_string().parse(), Ok(id));
        prop_assert_eq!(BufferId::from_bytes(&id.to_bytes()), Ok(id));
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in ".{0,64}") {
        let _ = text.parse::<BufferId>();
        let _ = text.parse::<DeviceUuid>();
        let _ = BootTag::from_boot_id(&text);
    }
}
