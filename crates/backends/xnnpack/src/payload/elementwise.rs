//! The elementwise kinds of nodes and their operators in ATen, from the rows of `schema.rs`.

use super::schema::for_each_node;
use Fixed::{Int, Str};

/// The operators of ATen that compute the same as an elementwise kind of node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aten {
    /// The operators of exported programs. The first one takes tensors.
    pub targets: &'static [&'static str],
    /// The kernel in the registry that a delegate calls.
    pub kernel: &'static str,
    /// Arguments of the operators, after the operands and the parameter, for which nodes have no field, and the only
    /// values of them that nodes compute. They are ATen's defaults.
    pub fixed: &'static [(&'static str, Fixed)],
}

/// The required value of an ATen argument for which nodes have no field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixed {
    /// A number that scales an operand or the result.
    Int(i64),
    /// A name of a variant of the function.
    Str(&'static str),
}

/// The parameter of a [`Unary`] kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// The parameter's name in listings of payloads.
    pub name: &'static str,
    /// The name of the argument of ATen's operators.
    pub argument: &'static str,
    /// The parameter's value in a node, or ATen's default.
    pub value: f32,
}

/// Defines the enums of the elementwise kinds, and the ATen operators and parameters of each kind.
macro_rules! elementwise {
    (
        unary { $(
            $u_tag:literal $u_name:literal $u:ident $( { $param:ident as $argument:ident = $default:literal } )? :
            [$($u_target:literal),*] $u_kernel:literal $( with [$($u_arg:ident = $u_value:expr),*] )?;
        )* }
        binary { $(
            $b_tag:literal $b_name:literal $b:ident $( within $bounds:ident )? :
            [$($b_target:literal),*] $b_kernel:literal $( with [$($b_arg:ident = $b_value:expr),*] )?;
        )* }
        other { $($other:tt)* }
    ) => {
        /// An elementwise function of one value. See [`Op::Unary`](super::Op::Unary).
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[expect(missing_docs, reason = "the schema's own names")]
        pub enum Unary { $( $u $( { $param: f32 } )?, )* }

        /// An elementwise function of two values. See [`Op::Binary`](super::Op::Binary).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the schema's own names")]
        pub enum Binary { $( $b, )* }

        impl Unary {
            /// All functions of one value, with ATen's defaults of their parameters.
            pub const ALL: &[Self] = &[$( Self::$u $( { $param: $default } )?, )*];

            /// The ATen operators that compute the same function.
            pub fn aten(self) -> &'static Aten {
                match self { $( Self::$u { .. } => &Aten {
                    targets: &[$($u_target),*],
                    kernel: $u_kernel,
                    fixed: &[$($( (stringify!($u_arg), $u_value) ),*)?],
                }, )* }
            }

            /// The parameter of the function, if it has one.
            pub fn parameter(self) -> Option<Parameter> {
                match self {
                    $( $( Self::$u { $param } => Some(Parameter {
                        name: stringify!($param),
                        argument: stringify!($argument),
                        value: $param,
                    }), )? )*
                    _ => None,
                }
            }

            /// The function with another value of its parameter, if it has one.
            #[must_use]
            pub fn with_parameter(self, value: f32) -> Self {
                match self {
                    $( $( Self::$u { $param: _ } => Self::$u { $param: value }, )? )*
                    other => other,
                }
            }
        }

        impl Binary {
            /// All functions of two values.
            pub const ALL: &[Self] = &[$( Self::$b, )*];

            /// The ATen operators that compute the same function.
            pub fn aten(self) -> &'static Aten {
                match self { $( Self::$b => &Aten {
                    targets: &[$($b_target),*],
                    kernel: $b_kernel,
                    fixed: &[$($( (stringify!($b_arg), $b_value) ),*)?],
                }, )* }
            }

            /// Whether a node of this function clamps its results to the node's bounds.
            pub fn is_bounded(self) -> bool {
                let words: &[&str] = match self { $( Self::$b => &[$( stringify!($bounds) )?], )* };
                !words.is_empty()
            }
        }
    };
}

for_each_node!(elementwise);

impl Unary {
    /// The function that an operator of exported programs computes, with the default of its parameter.
    pub fn of_target(target: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|f| f.aten().targets.contains(&target))
    }
}

impl Binary {
    /// The function that an operator of exported programs computes.
    pub fn of_target(target: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|f| f.aten().targets.contains(&target))
    }
}
