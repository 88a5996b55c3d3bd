//! Lists, maps and names, checked while they are read: what is one too many, there already or no name is refused where it
//! stands.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::limits;

/// A list of at least one entry and at most `MOST`.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MOST: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(List { least: 1, most: MOST, key: |_| None })
}

/// Names, at least one of them.
pub(crate) fn names<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let names: Vec<Name<T>> = list::<D, _, { limits::NAMES }>(deserializer)?;
    Ok(names.into_iter().map(|Name(name)| name).collect())
}

/// The same where they may be left out, which means something else than an empty list.
pub(crate) fn some_names<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    names(deserializer).map(Some)
}

/// A list of at most `MOST` entries, no two of them with the same key.
pub(crate) fn keyed<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    most: usize,
    key: fn(&T) -> Option<String>,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(List { least: 0, most, key })
}

/// Words of a few, none of them twice.
pub(crate) fn words<'de, D: Deserializer<'de>, T: Deserialize<'de> + Ord + Copy + fmt::Display>(
    deserializer: D,
) -> Result<BTreeSet<T>, D::Error> {
    Ok(keyed(deserializer, limits::NAMES, |word: &T| Some(word.to_string()))?.into_iter().collect())
}

/// The same where the list may be left out.
pub(crate) fn some_words<'de, D: Deserializer<'de>, T: Deserialize<'de> + Ord + Copy + fmt::Display>(
    deserializer: D,
) -> Result<Option<BTreeSet<T>>, D::Error> {
    words(deserializer).map(Some)
}

/// A value that may be left out, and is not nothing where it stands.
pub(crate) fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A map of at most [`limits::TERMS`] entries, none of them twice.
pub(crate) fn map<'de, D, K, V>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: FromStr<Err: fmt::Display> + Ord + fmt::Display,
    V: Deserialize<'de>,
{
    deserializer.deserialize_map(Map(PhantomData))
}

/// A name.
pub(crate) fn name<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    deserializer.deserialize_str(Text(PhantomData))
}

/// A text that is read as a `T`.
struct Name<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Name<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        name(deserializer).map(Self)
    }
}

struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

struct List<T> {
    least: usize,
    most: usize,
    /// What no two entries may have the same of.
    key: fn(&T) -> Option<String>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {} to {} entries", self.least, self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let (mut list, mut keys) = (Vec::new(), BTreeSet::new());
        while let Some(entry) = entries.next_element()? {
            if list.len() == self.most {
                return Err(A::Error::invalid_length(self.most + 1, &self));
            }
            if let Some(twice) = (self.key)(&entry).and_then(|key| keys.replace(key)) {
                return Err(A::Error::custom(format_args!("{twice} stands twice")));
            }
            list.push(entry);
        }
        if list.len() < self.least {
            return Err(A::Error::invalid_length(list.len(), &self));
        }
        Ok(list)
    }
}

struct Map<K, V>(PhantomData<(K, V)>);

impl<'de, K: FromStr<Err: fmt::Display> + Ord + fmt::Display, V: Deserialize<'de>> Visitor<'de>
    for Map<K, V>
{
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(key) = entries.next_key_seed(NewKey(&map))? {
            let value = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(map)
    }
}

/// A key that is not in the map yet. Refused while it is read, so that the place told is its own.
struct NewKey<'a, K, V>(&'a BTreeMap<K, V>);

impl<'de, K: FromStr<Err: fmt::Display> + Ord + fmt::Display, V> DeserializeSeed<'de> for NewKey<'_, K, V> {
    type Value = K;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<K: FromStr<Err: fmt::Display> + Ord + fmt::Display, V> Visitor<'_> for NewKey<'_, K, V> {
    type Value = K;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<K, E> {
        let key: K = text.parse().map_err(E::custom)?;
        if self.0.contains_key(&key) {
            return Err(E::custom(format_args!("{key} stands twice")));
        }
        if self.0.len() == limits::TERMS {
            return Err(E::custom(format_args!("a map of more than {} entries", limits::TERMS)));
        }
        Ok(key)
    }
}
