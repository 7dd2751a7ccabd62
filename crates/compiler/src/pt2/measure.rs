//! Measures a JSON document before it is parsed: a small file may have many values, which take far more memory than their
//! text.

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// The estimated memory of a parsed value in bytes, with its share of lists and tables.
const VALUE_BYTES: u64 = 72;

/// The size of a JSON document.
#[derive(Default)]
pub(super) struct Measure {
    /// The number of values in the document, nested ones included.
    values: u64,
    /// The number of bytes in the document's strings, keys included.
    text: u64,
    /// The path of the document's longest list, and its number of entries.
    longest: (String, u64),
}

impl Measure {
    /// Measures a JSON text.
    ///
    /// # Errors
    /// The text is no JSON.
    pub(super) fn from_text(text: &[u8]) -> serde_json::Result<Self> {
        let mut measure = Self::default();
        let mut document = serde_json::Deserializer::from_slice(text);
        Measuring { measure: &mut measure, path: &mut Vec::new() }.deserialize(&mut document)?;
        document.end()?;
        Ok(measure)
    }

    /// The estimated memory of the parsed document, in bytes.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.values.saturating_mul(VALUE_BYTES).saturating_add(self.text))
            .unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, len) = &self.longest;
        write!(f, "{} values, the longest list is `{path}` with {len}", self.values)
    }
}

/// Measures a JSON value while it is deserialized, without keeping any of it.
struct Measuring<'m> {
    measure: &'m mut Measure,
    /// The keys that lead to the value that is being read.
    path: &'m mut Vec<String>,
}

impl Measuring<'_> {
    fn reborrow(&mut self) -> Measuring<'_> {
        Measuring { measure: self.measure, path: self.path }
    }
}

impl<'de> DeserializeSeed<'de> for Measuring<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.measure.values += 1;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measuring<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.measure.text += text.len() as u64;
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let mut len = 0;
        while list.next_element_seed(self.reborrow())?.is_some() {
            len += 1;
        }
        if len > self.measure.longest.1 {
            self.measure.longest = (self.path.join("."), len);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.measure.text += key.len() as u64;
            self.path.push(key);
            map.next_value_seed(self.reborrow())?;
            self.path.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Measure;

    #[test]
    fn values_texts_and_the_longest_list_are_counted() {
        let measure =
            Measure::from_text(br#"{"a": {"list": [1, {"b": "cd"}, null], "c": []}, "d": true}"#).unwrap();
        assert_eq!((measure.values, measure.text), (9, 10));
        assert!(measure.to_string().contains("`a.list` with 3"), "{measure}");
        assert!(Measure::from_text(b"{} x").is_err() && Measure::from_text(b"[1").is_err());
    }
}
