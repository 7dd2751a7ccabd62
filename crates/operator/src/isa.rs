use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// A feature of an instruction set that kernels may have code for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-VNNI: dot products of 8-bit values in vectors of 256 bits.
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// x86-64 with AVX-512 VNNI: dot products of 8-bit values in vectors of 512 bits.
    Avx512Vnni,
    /// x86-64 with AMX-INT8: products of tiles of 8-bit values.
    Amx,
    /// AArch64 with dot products of 8-bit values.
    DotProd,
    /// AArch64 with I8MM: matrix products of 8-bit values.
    I8mm,
}

/// A row of the table of features.
struct Row {
    feature: Feature,
    /// The feature's name on command lines.
    name: &'static str,
    /// Features that every machine with this feature has, and that code for it may use. They have earlier rows.
    implies: &'static [Feature],
}

/// All features, in the order of the variants of [`Feature`].
const ROWS: [Row; 7] = [
    Row { feature: Feature::Avx2, name: "avx2", implies: &[] },
    Row { feature: Feature::AvxVnni, name: "avxvnni", implies: &[Feature::Avx2] },
    Row { feature: Feature::Avx512, name: "avx512", implies: &[Feature::Avx2] },
    Row { feature: Feature::Avx512Vnni, name: "avx512vnni", implies: &[Feature::Avx512] },
    Row { feature: Feature::Amx, name: "amx", implies: &[Feature::Avx512Vnni] },
    Row { feature: Feature::DotProd, name: "dotprod", implies: &[] },
    Row { feature: Feature::I8mm, name: "i8mm", implies: &[Feature::DotProd] },
];

/// The name of the set without features.
const PORTABLE: &str = "portable";

impl Feature {
    /// The feature's name on command lines.
    pub fn name(self) -> &'static str {
        ROWS[self as usize].name
    }
}

/// A set of features; with a feature it has all that the feature implies. On command lines it is named by the
/// feature that implies the rest; `portable` is the empty set, for which code uses the target's baseline. A set that
/// needs several names joins them by `+`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Features(u32);

impl Features {
    /// No features.
    pub const NONE: Features = Features(0);

    /// Whether the feature is in the set.
    pub fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u32) != 0
    }

    /// The features of both sets.
    pub fn union(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// The sets with a name, smallest first: the empty set, then one for each feature, with all that it implies.
    fn named_sets() -> impl Iterator<Item = Features> {
        std::iter::once(Features::NONE).chain(ROWS.iter().map(|row| row.feature.into()))
    }

    /// The names of the set's features that no other feature of the set implies.
    fn names(self) -> impl Iterator<Item = &'static str> {
        let is_implied = move |feature| {
            ROWS.iter().any(|row| {
                row.feature != feature && self.has(row.feature) && Features::from(row.feature).has(feature)
            })
        };
        let names = ROWS.iter().filter(move |row| self.has(row.feature) && !is_implied(row.feature));
        names.map(|row| row.name)
    }
}

impl From<Feature> for Features {
    /// The set of the feature and all that it implies.
    fn from(feature: Feature) -> Self {
        let implied = ROWS[feature as usize].implies;
        implied.iter().fold(Features(1 << feature as u32), |all, &f| all.union(f.into()))
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        f.write_str(if names.is_empty() { PORTABLE.to_owned() } else { names.join("+") }.as_str())
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Features {
    type Err = UnknownFeature;
    fn from_str(s: &str) -> Result<Self, UnknownFeature> {
        if s == PORTABLE {
            return Ok(Features::NONE);
        }
        let feature = |name: &str| ROWS.iter().find(|row| row.name == name).map(|row| row.feature.into());
        let features = s.split('+').map(feature).collect::<Option<Vec<Features>>>();
        let features = features.ok_or_else(|| UnknownFeature(s.to_owned()))?;
        Ok(features.into_iter().fold(Features::NONE, Features::union))
    }
}

/// The error of parsing [`Features`] from an unknown name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFeature(String);

impl fmt::Display for UnknownFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown instruction set '{}': use {PORTABLE}", self.0)?;
        for (i, row) in ROWS.iter().enumerate() {
            let separator = if i + 1 < ROWS.len() { ", " } else { " or " };
            write!(f, "{separator}{}", row.name)?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownFeature {}

/// The error of requesting [`Features`] that this machine lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingFeatures {
    requested: Features,
}

impl fmt::Display for MissingFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = Isa::available().map(|isa| isa.to_string()).collect();
        write!(f, "this machine does not support {}: it supports {}", self.requested, names.join(", "))
    }
}

impl std::error::Error for MissingFeatures {}

/// Proof that this machine has the [`Features`] that the caller allows. An `Isa` with a feature that the machine lacks
/// cannot be created, which makes functions that take one safe to call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(Features);

impl Isa {
    /// Every feature that this machine has. Detected once.
    pub fn detect() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let add = |all: Features, row: &Row| {
                let has_implied = row.implies.iter().all(|&f| all.has(f));
                if has_implied && is_detected(row.feature) { all.union(row.feature.into()) } else { all }
            };
            Isa(ROWS.iter().fold(Features::NONE, add))
        })
    }

    /// Exactly these features.
    ///
    /// # Errors
    /// If this machine lacks one of them.
    pub fn of(features: impl Into<Features>) -> Result<Isa, MissingFeatures> {
        let requested = features.into();
        let has_all = Isa::detect().0.union(requested) == Isa::detect().0;
        if has_all { Ok(Isa(requested)) } else { Err(MissingFeatures { requested }) }
    }

    /// No features, which every machine supports.
    pub fn portable() -> Isa {
        Isa(Features::NONE)
    }

    /// Every set with a name of its own that this machine supports, smallest first, and last the set of all its
    /// features: for tests of all code paths.
    pub fn available() -> impl Iterator<Item = Isa> {
        let detected = Isa::detect();
        let last = (!Features::named_sets().any(|features| features == detected.0)).then_some(detected);
        Features::named_sets().filter_map(|features| Isa::of(features).ok()).chain(last)
    }

    /// Whether code may use the feature.
    #[inline]
    pub fn has(self, feature: Feature) -> bool {
        self.0.has(feature)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Isa({})", self.0)
    }
}

impl Default for Isa {
    fn default() -> Self {
        Isa::detect()
    }
}

/// Whether this machine has the feature, provided that it has all features that this one implies.
#[cfg(target_arch = "x86_64")]
fn is_detected(feature: Feature) -> bool {
    match feature {
        Feature::Avx2 => {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        }
        Feature::AvxVnni => is_x86_feature_detected!("avxvnni"),
        Feature::Avx512 => {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        }
        Feature::Avx512Vnni => is_x86_feature_detected!("avx512vnni"),
        Feature::Amx => pteron_pool::has_amx_int8(),
        Feature::DotProd | Feature::I8mm => false,
    }
}

/// Whether this machine has the feature, provided that it has all features that this one implies.
#[cfg(target_arch = "aarch64")]
fn is_detected(feature: Feature) -> bool {
    match feature {
        Feature::DotProd => std::arch::is_aarch64_feature_detected!("dotprod"),
        Feature::I8mm => std::arch::is_aarch64_feature_detected!("i8mm"),
        _ => false,
    }
}

/// Always false: kernels have no code for features of this target.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn is_detected(_: Feature) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_variants_and_what_they_imply() {
        for (i, row) in ROWS.iter().enumerate() {
            assert_eq!(row.feature as usize, i);
            assert!(row.implies.iter().all(|&f| (f as usize) < i), "{}", row.name);
        }
    }

    #[test]
    fn names_round_trip() {
        for features in Features::named_sets() {
            assert_eq!(features.to_string().parse(), Ok(features));
        }
        let two = Features::from(Feature::AvxVnni).union(Feature::Amx.into());
        assert_eq!((two.to_string().as_str(), "amx+avxvnni".parse()), ("avxvnni+amx", Ok(two)));
        let error = "sse9".parse::<Features>().unwrap_err().to_string();
        assert!(error.ends_with("avx512vnni, amx, dotprod or i8mm"), "{error}");
    }

    #[test]
    fn features_imply_others() {
        let amx = Features::from(Feature::Amx);
        assert!(amx.has(Feature::Avx512Vnni) && amx.has(Feature::Avx512) && amx.has(Feature::Avx2));
        assert!(!amx.has(Feature::AvxVnni));
        assert!(!Features::from(Feature::Avx512).has(Feature::Avx512Vnni));
    }

    #[test]
    fn an_isa_has_only_what_the_machine_has() {
        let detected = Isa::detect();
        for features in Features::named_sets() {
            match Isa::of(features) {
                Ok(isa) => assert!(isa.0 == features && detected.0.union(features) == detected.0),
                Err(e) => {
                    let message = e.to_string();
                    assert!(
                        message.contains(&format!("support {features}: it supports portable")),
                        "{message}"
                    );
                }
            }
        }
        assert_eq!(Isa::available().next(), Some(Isa::portable()));
        assert_eq!(Isa::available().last(), Some(detected));
    }
}
