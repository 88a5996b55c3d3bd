//! Legacy handles of memory and events.

use std::sync::Arc;

use super::{Out, calls, with_context};
use crate::abi::IpcHandle;
use crate::error::Result;
use crate::event::Event;
use crate::measured;

calls! {
    fn cuIpcGetMemHandle(handle: Out<IpcHandle>, address: u64) {
        let (driver, _) = with_context()?;
        let out = handle.check()?;
        out.set(driver.ipc_get(address)?)
    }

    fn cuIpcOpenMemHandle(address: Out<u64>, handle: IpcHandle, flags: u32) {
        open(address, &handle, flags)
    }

    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: IpcHandle, flags: u32) {
        open(address, &handle, flags)
    }

    fn cuIpcCloseMemHandle(address: u64) {
        let (driver, _) = with_context()?;
        driver.ipc_close(address)
    }

    fn cuIpcGetEventHandle(handle: Out<IpcHandle>, event: usize) {
        let (driver, _) = with_context()?;
        let event = driver.state().events.get(&event).cloned().ok_or(measured::UNKNOWN_HANDLE)?;
        handle.set(event.export()?)
    }

    fn cuIpcOpenEventHandle(event: Out<usize>, handle: IpcHandle) {
        let (driver, gpu) = with_context()?;
        let out = event.check()?;
        let opened = Arc::new(Event::import(gpu, &handle)?);
        let number = driver.next_handle();
        driver.state().events.insert(number, opened);
        out.set(number)
    }
}

fn open(address: Out<u64>, handle: &IpcHandle, flags: u32) -> Result<()> {
    let (driver, gpu) = with_context()?;
    let out = address.check()?;
    out.set(driver.ipc_open(handle, flags, gpu)?)
}
