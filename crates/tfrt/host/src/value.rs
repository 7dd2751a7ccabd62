use crate::async_value::AsyncValue;
use crate::error::ErrorValue;
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// An object that a value can hold.
pub type Object = Arc<dyn Any + Send + Sync>;

/// The content of a register. Scalars and chains are stored inline and passed without allocation; everything else is
/// a refcounted object.
#[derive(Clone, Default)]
pub enum Value {
    /// Not set yet.
    #[default]
    Empty,
    /// No data: orders its users after the kernel that sets it.
    Chain,
    /// A scalar of type `i1`.
    Bool(bool),
    /// A scalar of type `i8`.
    I8(i8),
    /// A scalar of type `i16`.
    I16(i16),
    /// A scalar of type `i32`.
    I32(i32),
    /// A scalar of type `i64`.
    I64(i64),
    /// A scalar of type `ui8`.
    U8(u8),
    /// A scalar of type `ui16`.
    U16(u16),
    /// A scalar of type `ui32`.
    U32(u32),
    /// A scalar of type `ui64`.
    U64(u64),
    /// A scalar of type `f32`.
    F32(f32),
    /// A scalar of type `f64`.
    F64(f64),
    /// An object of a type that has no variant of its own.
    Object(Object),
    /// A value that may not be available yet; see [`AsyncValue`].
    Async(AsyncValue),
    /// A failure.
    Error(ErrorValue),
}

/// The values that a call returns, in order.
pub type Results = SmallVec<[Value; 2]>;

impl Value {
    /// Wraps `object` in a value; clones of the value share the object.
    pub fn object<T: Any + Send + Sync>(object: T) -> Self {
        Self::Object(Arc::new(object))
    }

    /// Whether the value is stored inline and holds no refcount.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        !matches!(self, Self::Object(_) | Self::Async(_) | Self::Error(_))
    }

    /// Whether the value is set and stored inline.
    #[inline(always)]
    pub(crate) fn is_scalar_or_chain(&self) -> bool {
        self.is_plain() && !matches!(self, Self::Empty)
    }

    /// Drops a refcounted value, so that [`Self::overwrite`] has nothing to drop.
    #[inline(always)]
    fn make_plain(&mut self) {
        if !self.is_plain() {
            self.clear();
        }
    }

    #[inline(never)]
    fn clear(&mut self) {
        *self = Self::Empty;
    }

    /// Overwrites a plain value without dropping it. Construct a scalar in the call, not before [`Self::make_plain`]:
    /// the compiler then stores it directly instead of building a temporary and copying it.
    #[inline(always)]
    fn overwrite(&mut self, value: Self) {
        let _plain_needs_no_drop = ManuallyDrop::new(std::mem::replace(self, value));
    }

    /// Assigns `value`; optimized for overwriting a plain value.
    #[inline(always)]
    pub(crate) fn put(&mut self, value: Self) {
        self.make_plain();
        self.overwrite(value);
    }

    /// Assigns a copy of `value`; optimized for plain values on both sides. The copy goes variant by variant: a load
    /// with the width of the recent store of a scalar is faster than a load of the whole value.
    #[inline(always)]
    pub(crate) fn put_copy(&mut self, value: &Self) {
        self.make_plain();
        match value {
            Self::Empty => self.overwrite(Self::Empty),
            Self::Chain => self.overwrite(Self::Chain),
            Self::Bool(v) => self.overwrite(Self::Bool(*v)),
            Self::I8(v) => self.overwrite(Self::I8(*v)),
            Self::I16(v) => self.overwrite(Self::I16(*v)),
            Self::I32(v) => self.overwrite(Self::I32(*v)),
            Self::I64(v) => self.overwrite(Self::I64(*v)),
            Self::U8(v) => self.overwrite(Self::U8(*v)),
            Self::U16(v) => self.overwrite(Self::U16(*v)),
            Self::U32(v) => self.overwrite(Self::U32(*v)),
            Self::U64(v) => self.overwrite(Self::U64(*v)),
            Self::F32(v) => self.overwrite(Self::F32(*v)),
            Self::F64(v) => self.overwrite(Self::F64(*v)),
            shared => *self = shared.clone(),
        }
    }

    /// Moves `value` to `self`; optimized for plain values on both sides.
    #[inline(always)]
    pub(crate) fn put_moved(&mut self, value: &mut Self) {
        if value.is_plain() {
            self.put_copy(value);
        } else {
            *self = std::mem::take(value);
        }
    }

    /// Drops a refcounted value. A scalar or chain stays, since a dead register is not read again.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        if !self.is_plain() {
            *self = Self::Empty;
        }
    }

    /// The object, if this value holds one of type `T`.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        if let Self::Object(object) = self { object.downcast_ref() } else { None }
    }

    /// The error, if the value is [`Value::Error`].
    pub fn as_error(&self) -> Option<&ErrorValue> {
        if let Self::Error(error) = self { Some(error) } else { None }
    }

    /// Whether the value is [`Value::Error`].
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Whether the value is available: neither [`Value::Empty`] nor an unresolved [`Value::Async`].
    pub fn is_available(&self) -> bool {
        match self {
            Self::Empty => false,
            Self::Async(value) => value.is_available(),
            _ => true,
        }
    }

    /// Unwraps an asynchronous value that has been resolved; other values are returned unchanged.
    #[must_use]
    #[inline]
    pub fn settle(self) -> Self {
        match self {
            Self::Async(value) => match value.get() {
                Some(inner) => inner.clone(),
                None => Self::Async(value),
            },
            other => other,
        }
    }

    /// Whether no other value shares the object that this value holds, if any; false for an asynchronous value.
    pub fn is_unique(&self) -> bool {
        match self {
            Self::Object(object) => Arc::strong_count(object) == 1,
            Self::Async(_) => false,
            _ => true,
        }
    }

    /// The kind of value, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Empty => "no value",
            Self::Chain => "a chain",
            Self::Bool(_) => "an i1",
            Self::I8(_) => "an i8",
            Self::I16(_) => "an i16",
            Self::I32(_) => "an i32",
            Self::I64(_) => "an i64",
            Self::U8(_) => "a ui8",
            Self::U16(_) => "a ui16",
            Self::U32(_) => "a ui32",
            Self::U64(_) => "a ui64",
            Self::F32(_) => "an f32",
            Self::F64(_) => "an f64",
            Self::Object(_) => "an object of another type",
            Self::Async(_) => "an asynchronous value",
            Self::Error(_) => "an error",
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Chain => f.write_str("Chain"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::I8(v) => write!(f, "{v}i8"),
            Self::I16(v) => write!(f, "{v}i16"),
            Self::I32(v) => write!(f, "{v}i32"),
            Self::I64(v) => write!(f, "{v}i64"),
            Self::U8(v) => write!(f, "{v}u8"),
            Self::U16(v) => write!(f, "{v}u16"),
            Self::U32(v) => write!(f, "{v}u32"),
            Self::U64(v) => write!(f, "{v}u64"),
            Self::F32(v) => write!(f, "{v}f32"),
            Self::F64(v) => write!(f, "{v}f64"),
            Self::Object(_) => f.write_str("Object"),
            Self::Async(v) => v.fmt(f),
            Self::Error(e) => e.fmt(f),
        }
    }
}

/// The Rust type of [`Value::Chain`]: no data, only an ordering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain;

/// A Rust type that a kernel can take as an argument.
pub trait FromValue: Sized {
    /// Whether the type is that of a scalar or chain.
    const PLAIN: bool = false;
    /// The expected type, for error messages.
    fn type_name() -> &'static str;
    /// The value as this type, or `None` if it is of another type.
    fn from_value(value: &Value) -> Option<Self>;
}

/// A Rust type that a kernel can return.
pub trait IntoValue {
    /// Whether the type is that of a scalar or chain.
    const PLAIN: bool = false;

    /// Converts `self` to a value.
    fn into_value(self) -> Value;

    /// Assigns the value to `place`. Returns whether the value is refcounted.
    #[doc(hidden)]
    #[inline(always)]
    fn assign_to(self, place: &mut Value) -> bool
    where
        Self: Sized,
    {
        let value = self.into_value();
        let shares = !value.is_plain();
        place.put(value);
        shares
    }
}

#[cold]
#[inline(never)]
fn overwrite_shared(place: &mut Value, value: impl IntoValue) {
    *place = value.into_value();
}

macro_rules! scalars {
    ($($ty:ty, $variant:ident, $expected:literal;)*) => {$(
        impl FromValue for $ty {
            const PLAIN: bool = true;
            fn type_name() -> &'static str {
                $expected
            }
            #[inline(always)]
            fn from_value(value: &Value) -> Option<Self> {
                if let Value::$variant(v) = value { Some(*v) } else { None }
            }
        }
        impl IntoValue for $ty {
            const PLAIN: bool = true;
            #[inline(always)]
            fn into_value(self) -> Value {
                Value::$variant(self)
            }
            #[inline(always)]
            fn assign_to(self, place: &mut Value) -> bool {
                if place.is_plain() {
                    place.overwrite(Value::$variant(self));
                } else {
                    overwrite_shared(place, self);
                }
                false
            }
        }
        impl From<$ty> for Value {
            #[inline(always)]
            fn from(v: $ty) -> Self {
                Value::$variant(v)
            }
        }
    )*};
}

scalars! {
    bool, Bool, "an i1";
    i8, I8, "an i8";
    i16, I16, "an i16";
    i32, I32, "an i32";
    i64, I64, "an i64";
    u8, U8, "a ui8";
    u16, U16, "a ui16";
    u32, U32, "a ui32";
    u64, U64, "a ui64";
    f32, F32, "an f32";
    f64, F64, "an f64";
}

impl FromValue for Chain {
    const PLAIN: bool = true;

    fn type_name() -> &'static str {
        "a chain"
    }
    #[inline(always)]
    fn from_value(value: &Value) -> Option<Self> {
        matches!(value, Value::Chain).then_some(Chain)
    }
}

impl IntoValue for Chain {
    const PLAIN: bool = true;

    #[inline(always)]
    fn into_value(self) -> Value {
        Value::Chain
    }
    #[inline(always)]
    fn assign_to(self, place: &mut Value) -> bool {
        place.make_plain();
        place.overwrite(Value::Chain);
        false
    }
}

impl From<Chain> for Value {
    fn from(_: Chain) -> Self {
        Value::Chain
    }
}

impl<T: Any + Send + Sync> FromValue for Arc<T> {
    fn type_name() -> &'static str {
        std::any::type_name::<T>()
    }
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Object(object) = value { Arc::clone(object).downcast().ok() } else { None }
    }
}

impl<T: Any + Send + Sync> IntoValue for Arc<T> {
    fn into_value(self) -> Value {
        Value::Object(self)
    }
}

impl FromValue for Value {
    fn type_name() -> &'static str {
        "any value"
    }
    #[inline(always)]
    fn from_value(value: &Value) -> Option<Self> {
        Some(value.clone())
    }
}

impl IntoValue for Value {
    #[inline(always)]
    fn into_value(self) -> Value {
        self
    }
}

impl IntoValue for AsyncValue {
    fn into_value(self) -> Value {
        Value::Async(self)
    }
}
