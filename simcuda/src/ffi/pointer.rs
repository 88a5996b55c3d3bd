//! Pointer attributes.

use std::ffi::c_void;

use super::{In, Out, calls};
use crate::driver::driver;
use crate::error::Result;
use crate::pointer::Value;

calls! {
    fn cuPointerGetAttribute(data: Out<c_void>, attribute: u32, address: u64) {
        let out = data.check()?;
        write(out, driver()?.pointer_attribute(attribute, address)?)
    }

    /// As the vendor documents it: an attribute without a value is left alone and is no error.
    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<Out<c_void>>, address: u64) {
        let driver = driver()?;
        let count = usize::try_from(count).unwrap_or(0);
        for (attribute, out) in attributes.list(count)?.into_iter().zip(data.list(count)?) {
            if let Ok(value) = driver.pointer_attribute(attribute, address) {
                write(out, value)?;
            }
        }
        Ok(())
    }
}

fn write(out: Out<c_void>, value: Value) -> Result<()> {
    match value {
        Value::U32(value) => out.cast::<u32>().set(value),
        Value::I32(value) => out.cast::<i32>().set(value),
        Value::U64(value) => out.cast::<u64>().set(value),
        Value::Pointer(value) => out.cast::<usize>().set(value),
    }
}
