//! Events.

use std::sync::Arc;
use std::time::Duration;

use super::convert::{buffer_id, info, millis, write_info};
use super::malformed;
use crate::ids::Seat;
use crate::message::{EndReason, Event, SeatEnd};
use crate::refusal::Refusal;
use crate::wire;

fn reason(number: i32) -> EndReason {
    match wire::EndReason::try_from(number) {
        Ok(wire::EndReason::Retired) => EndReason::Retired,
        Ok(wire::EndReason::OwnerClosed) => EndReason::OwnerClosed,
        Ok(wire::EndReason::OwnerDied) => EndReason::OwnerDied,
        Ok(wire::EndReason::MemberLeft) => EndReason::MemberLeft,
        Ok(wire::EndReason::Superseded) => EndReason::Superseded,
        Ok(wire::EndReason::NotAllowed) => EndReason::NotAllowed,
        Ok(wire::EndReason::Unspecified) | Err(_) => EndReason::Other,
    }
}

fn write_reason(reason: EndReason) -> i32 {
    match reason {
        EndReason::Retired => wire::EndReason::Retired,
        EndReason::OwnerClosed => wire::EndReason::OwnerClosed,
        EndReason::OwnerDied => wire::EndReason::OwnerDied,
        EndReason::MemberLeft => wire::EndReason::MemberLeft,
        EndReason::Superseded => wire::EndReason::Superseded,
        EndReason::NotAllowed => wire::EndReason::NotAllowed,
        EndReason::Other => wire::EndReason::Unspecified,
    }
    .into()
}

fn seat_end(number: i32) -> SeatEnd {
    match wire::SeatEnd::try_from(number) {
        Ok(wire::SeatEnd::Released) => SeatEnd::Released,
        Ok(wire::SeatEnd::Died) => SeatEnd::Died,
        Ok(wire::SeatEnd::Unspecified) | Err(_) => SeatEnd::Other,
    }
}

fn write_seat_end(how: SeatEnd) -> i32 {
    match how {
        SeatEnd::Released => wire::SeatEnd::Released,
        SeatEnd::Died => wire::SeatEnd::Died,
        SeatEnd::Other => wire::SeatEnd::Unspecified,
    }
    .into()
}

pub(super) fn event(e: wire::Event) -> Result<Event, Refusal> {
    use wire::event::Body;
    Ok(match e.body.ok_or_else(|| malformed("an event that this version knows"))? {
        Body::Appeared(i) => Event::Appeared(Arc::new(info(i)?)),
        Body::SnapshotDone(wire::SnapshotDone {}) => Event::SnapshotDone,
        Body::Retiring(r) => {
            Event::Retiring { id: buffer_id(&r.id)?, deadline: Duration::from_millis(r.deadline_ms) }
        }
        Body::Gone(g) => Event::Gone { id: buffer_id(&g.id)?, reason: reason(g.reason) },
        Body::Orphaned(o) => {
            Event::Orphaned { id: buffer_id(&o.id)?, reason: reason(o.reason), leases: o.leases }
        }
        Body::Seated(s) => Event::Seated { id: buffer_id(&s.id)?, seat: Seat(s.seat) },
        Body::Unseated(u) => {
            Event::Unseated { id: buffer_id(&u.id)?, seat: Seat(u.seat), how: seat_end(u.how) }
        }
    })
}

pub(super) fn write_event(e: &Event) -> wire::Event {
    use wire::event::Body;
    let body = match e {
        Event::Appeared(i) => Body::Appeared(write_info(i)),
        Event::SnapshotDone => Body::SnapshotDone(wire::SnapshotDone {}),
        Event::Retiring { id, deadline } => {
            Body::Retiring(wire::Retiring { id: id.to_bytes().to_vec(), deadline_ms: millis(*deadline) })
        }
        Event::Gone { id, reason } => {
            Body::Gone(wire::Gone { id: id.to_bytes().to_vec(), reason: write_reason(*reason) })
        }
        Event::Orphaned { id, reason, leases } => Body::Orphaned(wire::Orphaned {
            id: id.to_bytes().to_vec(),
            reason: write_reason(*reason),
            leases: *leases,
        }),
        Event::Seated { id, seat } => Body::Seated(wire::Seated { id: id.to_bytes().to_vec(), seat: seat.0 }),
        Event::Unseated { id, seat, how } => Body::Unseated(wire::Unseated {
            id: id.to_bytes().to_vec(),
            seat: seat.0,
            how: write_seat_end(*how),
        }),
    };
    wire::Event { body: Some(body) }
}
