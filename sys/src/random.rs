//! The kernel's random numbers.

use std::io;

/// So many random bytes, good enough for keys.
///
/// # Errors
/// When the kernel gives none.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        let [one, other] = [random::<32>().unwrap(), random::<32>().unwrap()];
        assert_ne!(one, other);
        assert_ne!(one, [0; 32]);
    }
}
