//! Which process numbers a member's processes get. Pure.
//!
//! The numbers of a PID namespace are cut into ranges of one width. Each member of a group has a range of its own, in its
//! own namespace. What lies before the first is nobody's: there are the numbers that a namespace begins with, and those
//! that the kernel goes on with when it has come to the end.

/// The numbers that a namespace may have, largest first: powers of two, as they are cut evenly, and what else a namespace
/// has counts as the next smaller one. With fewer than the last there is no room for a group.
pub const SIZES: [u32; 8] = [1 << 22, 1 << 21, 1 << 20, 1 << 19, 1 << 18, 1 << 17, 1 << 16, 1 << 15];
/// The widest that a range is: a loop of 10,000 processes stays in it.
const WIDEST: u32 = 16_384;
/// Parts that a namespace with few numbers is cut into.
const PARTS: u32 = 64;
/// Most ranges.
const MOST: u32 = 255;

/// How the numbers of a namespace are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    width: u32,
    count: u32,
}

impl Grid {
    /// Of a namespace with so many numbers (its `pid_max`); `None`: with too few.
    #[must_use]
    pub fn of(pid_max: u32) -> Option<Self> {
        let size = SIZES.into_iter().find(|size| *size <= pid_max)?;
        let width = (size / PARTS).min(WIDEST);
        Some(Self { width, count: (size / width - 1).min(MOST) })
    }

    /// How many ranges there are. Members beyond share theirs with others.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The numbers of the member that has this index in its group.
    #[must_use]
    pub const fn numbers(self, index: u32) -> Numbers {
        Numbers { first: self.width * (1 + index % self.count), width: self.width }
    }
}

/// A range of process numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    first: u32,
    width: u32,
}

impl Numbers {
    /// The last number before it: the namespace's next process gets the first of it then.
    #[must_use]
    pub const fn before(self) -> u32 {
        self.first - 1
    }

    /// Whether it is one of them.
    #[must_use]
    pub const fn contains(self, number: u32) -> bool {
        number >= self.first && number - self.first < self.width
    }

    /// How many are left when this number was given last; `None`: it is to begin anew, as half of them are used up, or
    /// the number is none of them.
    #[must_use]
    pub const fn left(self, last: u32) -> Option<u32> {
        let Some(used) = last.checked_sub(self.before()) else { return None };
        if used <= self.width / 2 { Some(self.width - used) } else { None }
    }

    /// How many there are.
    #[must_use]
    pub const fn width(self) -> u32 {
        self.width
    }
}

/// The first index that nobody of a group has.
pub fn free_index(taken: impl IntoIterator<Item = u32>) -> u32 {
    let mut taken: Vec<u32> = taken.into_iter().collect();
    taken.sort_unstable();
    taken.into_iter().fold(0, |free, index| if index == free { free + 1 } else { free })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_as_wide_as_the_numbers_allow() {
        let of = |pid_max| Grid::of(pid_max).map(|grid| (grid.width, grid.count));
        assert_eq!(of(4_194_304), Some((16_384, 255)));
        assert_eq!(of(1 << 20), Some((16_384, 63)));
        assert_eq!(of(1_000_000), Some((8_192, 63)), "as many as the next smaller power of two");
        assert_eq!(of(32_768), Some((512, 63)));
        assert_eq!([of(32_767), of(301), of(0)], [None; 3]);
        let numbers = Grid::of(4_194_304).unwrap().numbers(0);
        assert_eq!((numbers.before(), numbers.width()), (16_383, 16_384));
        // Half of them, and not one more.
        assert_eq!(numbers.left(16_383), Some(16_384));
        assert_eq!(numbers.left(16_383 + 8_192), Some(8_192));
        assert_eq!([numbers.left(16_383 + 8_193), numbers.left(300), numbers.left(u32::MAX)], [None; 3]);
    }

    proptest! {
        #[test]
        fn no_number_is_two_members_nor_more_than_the_namespace_has(
            pid_max in SIZES[7]..=SIZES[0], one in 0..300_u32, other in 0..300_u32, number in 0..=SIZES[0]
        ) {
            let grid = Grid::of(pid_max).unwrap();
            let [mine, others] = [one, other].map(|index| grid.numbers(index));
            let same = one % grid.count() == other % grid.count();
            prop_assert_eq!(mine == others, same);
            prop_assert!(same || !(mine.contains(number) && others.contains(number)));
            prop_assert!(mine.first >= grid.width && mine.first + (mine.width - 1) < pid_max);
            prop_assert!(mine.contains(mine.before() + 1) && !mine.contains(mine.before()));
            prop_assert!(mine.left(number).is_none_or(|left| left >= mine.width / 2));
        }

        #[test]
        fn an_index_is_nobody_elses_and_the_first_that_is_free(taken in proptest::collection::btree_set(0..40_u32, 0..40)) {
            let free = free_index(taken.iter().rev().copied());
            prop_assert!(!taken.contains(&free));
            prop_assert!((0..free).all(|index| taken.contains(&index)));
        }
    }
}
