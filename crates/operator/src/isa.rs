use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// An instruction set level that kernels may have code for, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The target's baseline; vectorised only by the compiler.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// Every level, lowest first.
    pub const ALL: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

    /// The name used on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = UnknownLevel;
    fn from_str(s: &str) -> Result<Self, UnknownLevel> {
        Level::ALL.into_iter().find(|l| l.name() == s).ok_or_else(|| UnknownLevel(s.to_owned()))
    }
}

/// The error of parsing a [`Level`] from an unknown name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLevel(String);

impl fmt::Display for UnknownLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown instruction set '{}': use portable, avx2 or avx512", self.0)
    }
}

impl std::error::Error for UnknownLevel {}

/// The error of requesting a [`Level`] that this machine does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this machine does not support {asked}; its highest level is {best}")]
pub struct MissingLevel {
    asked: Level,
    best: Level,
}

/// Proof that this machine can run the code of a [`Level`]. An `Isa` for an unsupported level cannot be
/// created, which makes functions that take one safe to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa {
    level: Level,
    vnni: bool,
}

impl Isa {
    /// The highest level that this machine supports. Detected once.
    pub fn detect() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(detect)
    }

    /// The highest level that this machine supports, but at most `limit`.
    pub fn limited(limit: Level) -> Isa {
        let best = Isa::detect();
        let level = best.level.min(limit);
        Isa { level, vnni: best.vnni && level == Level::Avx512 }
    }

    /// Exactly this level.
    ///
    /// # Errors
    /// If this machine does not support it.
    pub fn of(level: Level) -> Result<Isa, MissingLevel> {
        let isa = Isa::limited(level);
        if isa.level == level { Ok(isa) } else { Err(MissingLevel { asked: level, best: isa.level }) }
    }

    /// The level that every machine supports.
    pub fn portable() -> Isa {
        Isa { level: Level::Portable, vnni: false }
    }

    /// Every level that this machine supports, lowest first, for tests of all code paths.
    pub fn available() -> impl Iterator<Item = Isa> {
        let best = Isa::detect().level;
        Level::ALL.into_iter().filter(move |&l| l <= best).map(Isa::limited)
    }

    /// The level.
    pub fn level(self) -> Level {
        self.level
    }

    /// Whether 8-bit dot products (AVX-512 VNNI) may be used.
    pub fn vnni(self) -> bool {
        self.vnni
    }
}

impl Default for Isa {
    fn default() -> Self {
        Isa::detect()
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx512, avx2) {
        (true, _) => Isa { level: Level::Avx512, vnni: is_x86_feature_detected!("avx512vnni") },
        (_, true) => Isa { level: Level::Avx2, vnni: false },
        _ => Isa::portable(),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::portable()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for level in Level::ALL {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert!("sse9".parse::<Level>().unwrap_err().to_string().contains("portable, avx2 or avx512"));
    }

    #[test]
    fn a_limit_never_raises() {
        for level in Level::ALL {
            assert!(Isa::limited(level).level() <= level);
            assert!(Isa::limited(level).level() <= Isa::detect().level());
            match Isa::of(level) {
                Ok(isa) => assert_eq!(isa.level(), level),
                Err(e) => assert!(level > Isa::detect().level() && e.to_string().contains(level.name())),
            }
        }
        assert_eq!(Isa::available().next(), Some(Isa::portable()));
    }
}
