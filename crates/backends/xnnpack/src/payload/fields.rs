//! The tables of nodes, field by field, from the rows of `schema.rs`. One description of a table serves to read it, to
//! write it, and to find the flags that an operation needs: these are three implementations of [`Fields`].

use super::elementwise::{Binary, Unary};
use super::node::{Conv, Node, Op, Pool};
use super::schema::for_each_node;
use std::convert::Infallible;

/// Visits the fields of a node's table in the schema's order. Methods are the kinds of fields; `place` is what a field
/// is read to or written from. An implementation that ignores a kind of field leaves its method out.
pub(super) trait Fields {
    type Error;

    /// The id of a value that the node reads.
    fn input(&mut self, _name: &'static str) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The id of a value that the node reads, or the id that means "no value".
    fn optional(&mut self, _name: &'static str) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A field that this kind of node does not use.
    fn absent(&mut self, _name: &'static str) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The id of a value that the node writes.
    fn output(&mut self, _name: &'static str) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The node's flags; `bits` are the flags that the operation holds as boolean fields.
    fn flags(&mut self, _name: &'static str, _bits: &mut [(u32, &mut bool)]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A number in the range `_range`.
    fn number(&mut self, _name: &'static str, _range: Range, _place: &mut usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A float, 0 if it is absent.
    fn float(&mut self, _name: &'static str, _place: &mut f32) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A field that holds the length of the lists of sizes in the fields after it.
    fn length(&mut self, _name: &'static str, _sizes: &mut Vec<usize>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A list of sizes or dimensions.
    fn sizes(&mut self, _name: &'static str, _place: &mut Vec<usize>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A dimension of the input whose id is the next field. Negative ones count from the end.
    fn axis(&mut self, _name: &'static str, _place: &mut usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A size of a value, which may exceed [`MAX_STEP`].
    fn size(&mut self, name: &'static str, place: &mut usize) -> Result<(), Self::Error> {
        self.number(name, Range::Any, place)
    }

    /// A padding or an adjustment.
    fn padding(&mut self, name: &'static str, place: &mut usize) -> Result<(), Self::Error> {
        self.number(name, Range::Padding, place)
    }

    /// A kernel size, a stride, a dilation or a number of channels.
    fn positive(&mut self, name: &'static str, place: &mut usize) -> Result<(), Self::Error> {
        self.number(name, Range::Positive, place)
    }

    /// The dilation of a pooling. Average pooling has none, and its fields are 0.
    fn pool_dilation(&mut self, name: &'static str, place: &mut usize) -> Result<(), Self::Error> {
        self.number(name, Range::Padding, place)?;
        *place = (*place).max(1);
        Ok(())
    }
}

/// The range of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Range {
    Any,
    /// 0 to [`MAX_STEP`].
    Padding,
    /// 1 to [`MAX_STEP`].
    Positive,
}

/// Maximum kernel size, stride, padding, dilation and number of channels.
pub(super) const MAX_STEP: u32 = 1 << 20;

/// Visits a list of fields, `name: kind(place)` or `name: flags[mask => place]`, and those of a shared table behind
/// `..`.
macro_rules! fields {
    ($f:ident; ..$table:ident $( ($of:ident) )?) => { $table($f $(, &mut $of)?) };
    (
        $f:ident; $( $name:ident : $kind:ident $( ($($place:tt)+) )? $( [$($mask:literal => $bit:ident),*] )? ),+
        $(, ..$table:ident)?
    ) => {{
        $( $f.$kind(
            stringify!($name) $(, &mut $($place)+)? $(, &mut [$(($mask, &mut $bit)),*])?
        )?; )+
        $( $table($f)?; )?
        Ok(())
    }};
}

/// A node with one input and one output.
fn node_1x1<F: Fields>(f: &mut F) -> Result<(), F::Error> {
    fields!(f; input_id: input, output_id: output, flags: flags[])
}

/// A node with two inputs and one output.
fn node_2x1<F: Fields>(f: &mut F) -> Result<(), F::Error> {
    fields!(f; input1_id: input, input2_id: input, output_id: output, flags: flags[])
}

fn node_conv<F: Fields>(f: &mut F, conv: &mut Conv) -> Result<(), F::Error> {
    padding(f, &mut conv.padding)?;
    fields!(f;
        kernel_height: positive(conv.kernel[0]), kernel_width: positive(conv.kernel[1]),
        subsampling_height: positive(conv.stride[0]), subsampling_width: positive(conv.stride[1]),
        dilation_height: positive(conv.dilation[0]), dilation_width: positive(conv.dilation[1]),
        group_input_channels: positive(conv.group_inputs),
        group_output_channels: positive(conv.group_outputs),
        groups: positive(conv.groups),
        adjustment_height: padding(conv.adjustment[0]), adjustment_width: padding(conv.adjustment[1]),
        input1_id: input, filter_id: input, bias_id: optional, output_id: output, flags: flags[]
    )
}

fn pooling_2d<F: Fields>(f: &mut F, pool: &mut Pool) -> Result<(), F::Error> {
    padding(f, &mut pool.padding)?;
    fields!(f;
        pooling_height: positive(pool.window[0]), pooling_width: positive(pool.window[1]),
        stride_height: positive(pool.stride[0]), stride_width: positive(pool.stride[1]),
        dilation_height: pool_dilation(pool.dilation[0]), dilation_width: pool_dilation(pool.dilation[1]),
        ..node_1x1
    )
}

fn arg_max_pooling_2d<F: Fields>(f: &mut F, pool: &mut Pool) -> Result<(), F::Error> {
    padding(f, &mut pool.padding)?;
    fields!(f;
        pooling_height: positive(pool.window[0]), pooling_width: positive(pool.window[1]),
        input_id: input, output_value_id: output, output_index_id: output, flags: flags[]
    )?;
    // The table has no strides: windows do not overlap.
    (pool.stride, pool.dilation) = (pool.window, [1; 2]);
    Ok(())
}

fn padding<F: Fields>(f: &mut F, padding: &mut [usize; 4]) -> Result<(), F::Error> {
    fields!(f;
        padding_top: padding(padding[0]), padding_right: padding(padding[1]),
        padding_bottom: padding(padding[2]), padding_left: padding(padding[3])
    )
}

/// Defines the tags and names of node kinds, and two walks over a node's table: one makes an operation, one visits it.
macro_rules! tables {
    (
        unary { $(
            $u_tag:literal $u_name:literal $u:ident $( { $param:ident as $field:ident = $default:literal } )? :
            [$($u_target:literal),*] $u_kernel:literal $( with [$($u_fixed:tt)*] )?;
        )* }
        binary { $(
            $b_tag:literal $b_name:literal $b:ident $( within $bounds:ident )? :
            [$($b_target:literal),*] $b_kernel:literal $( with [$($b_fixed:tt)*] )?;
        )* }
        other { $(
            $tag:literal $name:literal $op:ident $( ($struct:ident) )? $( { $($place:ident),* } )?
            $( of $inputs:literal )? => { $($fields:tt)* }
        )* }
    ) => {
        /// The tags of the schema's union of nodes, each with its name in the schema, without `XNN`.
        pub(super) const KINDS: &[(u8, &str)] =
            &[$( ($u_tag, $u_name), )* $( ($b_tag, $b_name), )* $( ($tag, $name), )*];

        impl Op {
            /// The operation's tag in the schema's union, and its name there without `XNN`. `inputs` is the number of values that the
            /// operation reads.
            pub(super) fn kind(&self, inputs: usize) -> (u8, &'static str) {
                match self {
                    $( Self::Unary(Unary::$u { .. }) => ($u_tag, $u_name), )*
                    $( Self::Binary(Binary::$b) => ($b_tag, $b_name), )*
                    $( Self::$op { .. } $( if inputs == $inputs )? => ($tag, $name), )*
                }
            }
        }

        /// Reads the operation with this tag from the fields that `f` visits. `None` if the schema has no such tag.
        pub(super) fn read<F: Fields>(tag: u8, f: &mut F) -> Result<Option<Op>, F::Error> {
            Ok(Some(match tag {
                $( $u_tag => {
                    $( let mut $param = 0.0; f.float(stringify!($field), &mut $param)?; )?
                    node_1x1(f)?;
                    Op::Unary(Unary::$u $( { $param } )?)
                } )*
                $( $b_tag => { node_2x1(f)?; Op::Binary(Binary::$b) } )*
                $( $tag => {
                    $( let mut $struct = Default::default(); )?
                    $( $( let mut $place = Default::default(); )* )?
                    fields!(f; $($fields)*)?;
                    Op::$op $( ($struct) )? $( { $($place),* } )?
                } )*
                _ => return Ok(None),
            }))
        }

        /// Visits the fields of an operation that reads `inputs` values.
        pub(super) fn visit<F: Fields>(op: &Op, inputs: usize, f: &mut F) -> Result<(), F::Error> {
            match op.clone() {
                $( Op::Unary(Unary::$u $( { mut $param } )?) => {
                    $( f.float(stringify!($field), &mut $param)?; )?
                    node_1x1(f)
                } )*
                $( Op::Binary(Binary::$b) => node_2x1(f), )*
                $( Op::$op $( (mut $struct) )? $( { $(mut $place),* } )? $( if inputs == $inputs )? => {
                    fields!(f; $($fields)*)
                } )*
            }
        }
    };
}

for_each_node!(tables);

/// Collects the flags that an operation needs.
struct FlagBits(u32);

impl Fields for FlagBits {
    type Error = Infallible;

    fn flags(&mut self, _: &'static str, bits: &mut [(u32, &mut bool)]) -> Result<(), Infallible> {
        self.0 = bits.iter().filter(|(_, is_set)| **is_set).fold(0, |flags, (mask, _)| flags | mask);
        Ok(())
    }
}

impl Node {
    /// A node without bounds, with the flags that its operation needs.
    pub fn new(op: Op, inputs: Vec<usize>, outputs: Vec<usize>) -> Self {
        let mut flags = FlagBits(0);
        let Ok(()) = visit(&op, inputs.len(), &mut flags);
        let bounds = (f32::NEG_INFINITY, f32::INFINITY);
        let name = op.kind(inputs.len()).1;
        Self { name, op, inputs, outputs, bounds, flags: flags.0, debug_handle: 0 }
    }
}
