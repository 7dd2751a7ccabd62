//! Elementwise operators: the loop over one to three inputs of any types, layouts and broadcast
//! shapes into one out.
//!
//! An operator gives, for each type it computes in, a function over blocks ([`Fns`], made by the
//! [`elementwise!`](crate::support::map::elementwise) macro). [`map`] brings blocks of the inputs
//! into that type in the order in which the out is stored, and stores the results. Where an input
//! lies so already, the function sees the input's own memory.

use crate::support::dims::broadcast;
use crate::support::dtype::{C64, Compute, Load, compute_type, conversion, float_type, unsupported};
use crate::support::layout::{Layout, Walk};
use operator::{Arg, Args, DtypeSet, KernelContext, Outs, Result, ScratchBuffer, ensure};
use pool::Pool;
use tensor::{Scalar, ScalarType, Shape, TensorMeta, TensorViewMut, bf16, f16};

/// Elements of a block.
const BLOCK: usize = 512;
/// Elements of the pieces that threads share out.
const CHUNK: usize = 8 * BLOCK;
/// Pieces below which a thread is not worth waking.
const GRAIN: usize = 8;

/// A function over blocks of equal length.
pub(crate) type BlockFn<'f, C, const N: usize> = &'f (dyn Fn([&[C]; N], &mut [C]) + Sync + 'f);

/// An elementwise function in each type that it can be computed in.
#[derive(Clone, Copy)]
pub(crate) struct Fns<'f, const N: usize> {
    pub(crate) f32: Option<BlockFn<'f, f32, N>>,
    pub(crate) f64: Option<BlockFn<'f, f64, N>>,
    pub(crate) i64: Option<BlockFn<'f, i64, N>>,
    pub(crate) complex: Option<BlockFn<'f, C64, N>>,
    /// Whether a second input of one element is taken as it is where the inputs meet in half precision; others are
    /// rounded to the type first.
    pub(crate) exact_number: bool,
}

impl<const N: usize> Fns<'_, N> {
    /// The types of tensors that one of the functions serves.
    fn dtypes(&self) -> DtypeSet {
        [
            (self.f32.is_some(), DtypeSet::FLOATING),
            (self.i64.is_some(), DtypeSet::INTEGRAL.and(DtypeSet::BOOL)),
            (self.complex.is_some(), DtypeSet::COMPLEX),
        ]
        .iter()
        .filter(|(has, _)| *has)
        .fold(DtypeSet::NONE, |all, (_, set)| all.and(*set))
    }
}

/// Makes [`Fns`] from expressions over elements, one for each kind of type:
///
/// ```ignore
/// elementwise!(float |x| x.exp(), complex |z| z.exp())
/// elementwise!(float |a, b| a + b, int |a, b| a.wrapping_add(b))
/// elementwise!(real |a, b| F::truth(a < b))
/// ```
///
/// `float` serves f32 and f64, `int` i64 (integers and bool), `real` all three, `complex` [`C64`].
/// In an expression `F` is the type at hand.
macro_rules! elementwise {
    (float |$($x:ident),+| $f:expr) => {
        elementwise!(@fns elementwise!(@block f32, [$($x),+], $f), elementwise!(@block f64, [$($x),+], $f), None, None)
    };
    (float |$($x:ident),+| $f:expr, complex |$($z:ident),+| $c:expr) => {
        elementwise!(@fns elementwise!(@block f32, [$($x),+], $f), elementwise!(@block f64, [$($x),+], $f), None,
            elementwise!(@block $crate::support::dtype::C64, [$($z),+], $c))
    };
    (float |$($x:ident),+| $f:expr, int |$($i:ident),+| $n:expr) => {
        elementwise!(@fns elementwise!(@block f32, [$($x),+], $f), elementwise!(@block f64, [$($x),+], $f),
            elementwise!(@block i64, [$($i),+], $n), None)
    };
    (float |$($x:ident),+| $f:expr, int |$($i:ident),+| $n:expr, complex |$($z:ident),+| $c:expr) => {
        elementwise!(@fns elementwise!(@block f32, [$($x),+], $f), elementwise!(@block f64, [$($x),+], $f),
            elementwise!(@block i64, [$($i),+], $n), elementwise!(@block $crate::support::dtype::C64, [$($z),+], $c))
    };
    (real |$($x:ident),+| $f:expr) => {
        elementwise!(float |$($x),+| $f, int |$($x),+| $f)
    };
    (real |$($x:ident),+| $f:expr, complex |$($z:ident),+| $c:expr) => {
        elementwise!(float |$($x),+| $f, int |$($x),+| $f, complex |$($z),+| $c)
    };
    (int |$($i:ident),+| $n:expr) => {
        elementwise!(@fns None, None, elementwise!(@block i64, [$($i),+], $n), None)
    };
    (@fns $f32:expr, $f64:expr, $i64:expr, $complex:expr) => {
        $crate::support::map::Fns { f32: $f32, f64: $f64, i64: $i64, complex: $complex, exact_number: false }
    };
    (@block $type:ty, [$($x:ident),+], $body:expr) => {
        Some(&|inputs: [&[$type]; _], out: &mut [$type]| {
            #[allow(dead_code)]
            type F = $type;
            let n = out.len();
            let [$($x),+] = inputs;
            $(let $x = &$x[..n];)+
            for i in 0..n {
                $(let $x = $x[i];)+
                out[i] = $body;
            }
        })
    };
}
pub(crate) use elementwise;

/// One input of an elementwise operator.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "a call has three at most, on the stack")]
pub(crate) enum Input {
    /// The tensor at this position of the arguments.
    Arg(usize),
    /// A view of the tensor at this position of the arguments.
    View(usize, Layout),
    /// A number.
    Scalar(Scalar),
}

impl Input {
    /// The sizes that take part in broadcasting; a number has none.
    fn sizes(&self, args: &Args<'_>) -> Result<Shape> {
        Ok(match *self {
            Self::Arg(i) => *args.meta(i)?.sizes(),
            Self::View(_, view) => view.sizes,
            Self::Scalar(_) => Shape::SCALAR,
        })
    }

    /// The argument at this position, a tensor or a number.
    pub(crate) fn of(args: &Args<'_>, index: usize) -> Result<Self> {
        Ok(match args.get(index) {
            Arg::Int(_) | Arg::Double(_) | Arg::Bool(_) => Self::Scalar(args.scalar(index)?),
            _ => Self::Arg(index),
        })
    }
}

/// The number of a floating-point type that is nearest to `x`; `x` for other types.
pub(crate) fn nearest(x: f64, dtype: ScalarType) -> f64 {
    match dtype {
        ScalarType::Half => f16::from_f64(x).to_f64(),
        ScalarType::BFloat16 => bf16::from_f64(x).to_f64(),
        ScalarType::Float => f64::from(x as f32),
        _ => x,
    }
}

/// The type in which the inputs meet: `torch.result_type`. Zero-dim tensors count only where they are
/// of a higher category (bool, integer, floating-point, complex) than tensors with dimensions, and
/// numbers only where they are of a higher one than all tensors.
pub(crate) fn promote(args: &Args<'_>, inputs: &[Input]) -> Result<ScalarType> {
    let mut found = [None; 3];
    for input in inputs {
        let (dtype, priority) = match *input {
            Input::Arg(i) | Input::View(i, _) => {
                let meta = args.meta(i)?;
                (meta.dtype(), (meta.rank() == 0) as usize)
            }
            Input::Scalar(Scalar::Double(_)) => (ScalarType::Float, 2),
            Input::Scalar(s) => (s.dtype(), 2),
        };
        found[priority] = match found[priority] {
            None => Some(dtype),
            Some(other) => Some(meet(other, dtype)?),
        };
    }
    let category = |t: ScalarType| match t {
        ScalarType::Bool => 0,
        t if t.is_complex() => 3,
        t if t.is_floating() => 2,
        _ => 1,
    };
    found
        .into_iter()
        .flatten()
        .map(Ok)
        .reduce(|high, low| {
            let (high, low) = (high?, low?);
            if category(low) <= category(high) {
                Ok(high)
            } else if category(high) == 2 {
                Ok(to_complex(high))
            } else {
                meet(high, low)
            }
        })
        .unwrap_or(Ok(ScalarType::Float))
}

fn meet(a: ScalarType, b: ScalarType) -> Result<ScalarType> {
    a.promote(b).ok_or_else(|| operator::Error::invalid(format!("no type holds both {a} and {b}")))
}

fn to_complex(dtype: ScalarType) -> ScalarType {
    match dtype {
        ScalarType::Half => ScalarType::ComplexHalf,
        ScalarType::Double => ScalarType::ComplexDouble,
        _ => ScalarType::ComplexFloat,
    }
}

/// Refuses an out that results of a type may not be stored in.
pub(crate) fn expect_out(result: ScalarType, out: ScalarType) -> Result<()> {
    ensure!(result.can_cast(out), "out: a result of {result} cannot be stored as {out}");
    Ok(())
}

/// `out[i] = f(inputs[i]...)` in the type in which the inputs meet.
pub(crate) fn map<const N: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    inputs: [Input; N],
    fns: &Fns<'_, N>,
) -> Result<()> {
    let dtype = promote(args, &inputs)?;
    map_as(ctx, args, outs, inputs, dtype, dtype, fns)
}

/// As [`map`]; integers and bool are computed as float32.
pub(crate) fn map_float<const N: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    inputs: [Input; N],
    fns: &Fns<'_, N>,
) -> Result<()> {
    let dtype = float_type(promote(args, &inputs)?);
    map_as(ctx, args, outs, inputs, dtype, dtype, fns)
}

/// As [`map`]; the result is true (one) or false (zero).
pub(crate) fn map_bool<const N: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    inputs: [Input; N],
    fns: &Fns<'_, N>,
) -> Result<()> {
    let dtype = promote(args, &inputs)?;
    map_as(ctx, args, outs, inputs, dtype, ScalarType::Bool, fns)
}

/// `out[i] = f(inputs[i]...)`, the inputs converted to `dtype`, the results being of type `result`.
pub(crate) fn map_as<const N: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    inputs: [Input; N],
    dtype: ScalarType,
    result: ScalarType,
    fns: &Fns<'_, N>,
) -> Result<()> {
    let mut sizes = Shape::SCALAR;
    for input in &inputs {
        sizes = broadcast(&sizes, &input.sizes(args)?)?;
    }
    expect_out(result, outs.tensor(0)?.dtype())?;
    map_sized(ctx, args, outs, inputs, sizes, dtype, result, fns)
}

/// As [`map_as`], the out being of these sizes, to which the inputs are broadcast, and of any type.
pub(crate) fn map_sized<const N: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    inputs: [Input; N],
    sizes: Shape,
    dtype: ScalarType,
    result: ScalarType,
    fns: &Fns<'_, N>,
) -> Result<()> {
    let out = outs.tensor(0)?;
    // An argument in the out's own bytes is read in step with the writing if it lies as the out does,
    // and copied away first if not.
    let mut moved: [Option<ScratchBuffer<'_, u8>>; N] = std::array::from_fn(|_| None);
    for (input, moved) in inputs.iter().zip(&mut moved) {
        if let Input::Arg(i) | Input::View(i, _) = *input
            && let Arg::InPlace { meta, .. } = *args.get(i)
            && (matches!(input, Input::View(..)) || !in_step(meta, &sizes, out.meta()))
        {
            let mut copy = ctx.scratch::<u8>(meta.nbytes())?;
            copy.copy_from_slice(&out.all_bytes()[..meta.nbytes()]);
            *moved = Some(copy);
        }
    }
    out.resize(&sizes)?;
    let exact_number = fns.exact_number;
    let call = Call { pool: ctx.pool(), args, inputs, moved: &moved, dtype: result, exact_number };
    let refuse = || unsupported(args.name(0), dtype, fns.dtypes());
    match compute_type(dtype) {
        ScalarType::Float => call.run(out, dtype, fns.f32.ok_or_else(refuse)?),
        ScalarType::Double => call.run(out, dtype, fns.f64.ok_or_else(refuse)?),
        ScalarType::ComplexDouble => call.run(out, dtype, fns.complex.ok_or_else(refuse)?),
        _ => call.run(out, dtype, fns.i64.ok_or_else(refuse)?),
    }
}

/// Whether an argument in the out's bytes can be read block by block while they are written.
fn in_step(meta: &TensorMeta, sizes: &Shape, out: &TensorMeta) -> bool {
    meta.dtype() == out.dtype()
        && meta.sizes() == sizes
        && meta.rank() == out.rank()
        && meta.dim_order().same_layout(out.dim_order(), sizes)
}

struct Call<'c, 'a, 's, const N: usize> {
    pool: &'c Pool,
    args: &'c Args<'a>,
    inputs: [Input; N],
    moved: &'c [Option<ScratchBuffer<'s, u8>>; N],
    dtype: ScalarType,
    /// See [`Fns::exact_number`].
    exact_number: bool,
}

/// How one input gives its blocks.
enum Operand<'a, C> {
    Constant(C),
    /// The out's own elements.
    Out(Load<C>),
    Strided {
        bytes: &'a [u8],
        /// The same bytes, where they need no conversion.
        direct: Option<&'a [C]>,
        walk: Walk,
        load: Load<C>,
        /// What makes elements of another type those of the type in which the inputs meet.
        narrow: Option<fn(C) -> C>,
    },
}

type Buffer<C> = Option<[C; BLOCK]>;

impl<const N: usize> Call<'_, '_, '_, N> {
    fn operand<C: Compute>(&self, k: usize, dtype: ScalarType, out: &TensorMeta) -> Result<Operand<'_, C>> {
        let narrow = self.narrowing::<C>(k, dtype)?;
        let narrowed = |x: C| narrow.map_or(x, |narrow| narrow(x));
        let (index, view) = match self.inputs[k] {
            Input::Scalar(s) => return Ok(Operand::Constant(narrowed(C::of_scalar(s)))),
            Input::Arg(index) => (index, None),
            Input::View(index, view) => (index, Some(view)),
        };
        let meta = self.args.meta(index)?;
        let load = C::loader(meta.dtype())?;
        let bytes = match (&self.moved[k], self.args.get(index)) {
            (Some(copy), _) => &copy[..],
            (None, Arg::InPlace { .. }) => return Ok(Operand::Out(load)),
            _ => self.args.tensor(index)?.bytes(),
        };
        aligned(bytes, meta.dtype())?;
        let layout = view.unwrap_or(Layout::of(meta)).expand(out.sizes())?;
        let walk = layout.walk_in(out.dim_order());
        if let (Some(at), false) = (walk.constant(), bytes.is_empty()) {
            let mut value = [C::default()];
            load(bytes, at, 0, &mut value);
            return Ok(Operand::Constant(narrowed(value[0])));
        }
        let as_it_is = meta.dtype() == C::DTYPE && narrow.is_none();
        let direct = if as_it_is { bytemuck::try_cast_slice(bytes).ok() } else { None };
        Ok(Operand::Strided { bytes, direct, walk, load, narrow })
    }

    /// What makes elements of an input those of the type in which the inputs meet, where it is not what they are.
    fn narrowing<C: Compute>(&self, k: usize, dtype: ScalarType) -> Result<Option<fn(C) -> C>> {
        let (own, single) = match self.inputs[k] {
            Input::Scalar(_) => (None, true),
            Input::Arg(i) | Input::View(i, _) => {
                (Some(self.args.meta(i)?.dtype()), self.args.meta(i)?.numel() == 1)
            }
        };
        let half = matches!(dtype, ScalarType::Half | ScalarType::BFloat16);
        let exact = half && self.exact_number && k == 1 && single;
        Ok(if own == Some(dtype) || exact { None } else { narrowing::<C>(dtype) })
    }

    fn run<C: Compute>(
        &self,
        out: &mut TensorViewMut<'_>,
        dtype: ScalarType,
        f: BlockFn<'_, C, N>,
    ) -> Result<()> {
        let mut operands: [Operand<'_, C>; N] = std::array::from_fn(|_| Operand::Constant(C::default()));
        for (k, operand) in operands.iter_mut().enumerate() {
            *operand = self.operand(k, dtype, out.meta())?;
        }
        let to = out.dtype();
        let store = C::storer(to)?;
        let direct = to == C::DTYPE;
        let narrow = if to == self.dtype { None } else { narrowing::<C>(self.dtype) };
        let size = to.size();
        let bytes = out.bytes_mut();
        aligned(bytes, to)?;
        self.pool.parallel_chunks_mut(bytes, CHUNK * size, GRAIN, &|chunk, bytes| {
            let mut buffers: [Buffer<C>; N] = [const { None }; N];
            let mut result: Buffer<C> = None;
            for (b, bytes) in bytes.chunks_mut(BLOCK * size).enumerate() {
                let start = chunk * CHUNK + b * BLOCK;
                let n = bytes.len() / size;
                let mut each = operands.iter().zip(&mut buffers);
                let inputs = std::array::from_fn(|_| match each.next() {
                    Some((operand, buffer)) => operand.block(start, n, bytes, buffer),
                    None => &[],
                });
                if direct {
                    f(inputs, bytemuck::cast_slice_mut(bytes));
                } else {
                    let result = &mut result.get_or_insert([C::default(); BLOCK])[..n];
                    f(inputs, result);
                    if let Some(narrow) = narrow {
                        result.iter_mut().for_each(|x| *x = narrow(*x));
                    }
                    store(result, bytes);
                }
            }
        });
        Ok(())
    }
}

impl<C: Compute> Operand<'_, C> {
    /// Elements `start..start + n`, in the order in which the out is stored.
    fn block<'b>(&'b self, start: usize, n: usize, out: &[u8], buffer: &'b mut Buffer<C>) -> &'b [C] {
        match self {
            Self::Constant(value) => &buffer.get_or_insert([*value; BLOCK])[..n],
            Self::Out(load) => {
                let block = &mut buffer.get_or_insert([C::default(); BLOCK])[..n];
                load(out, 0, 1, block);
                block
            }
            Self::Strided { bytes, direct, walk, load, narrow } => {
                if let Some(all) = direct
                    && let Some(at) = walk.dense_range(start..start + n)
                {
                    return &all[at..at + n];
                }
                let block = &mut buffer.get_or_insert([C::default(); BLOCK])[..n];
                let mut done = 0;
                walk.runs(start..start + n, |at, stride, count| {
                    load(bytes, at, stride, &mut block[done..done + count]);
                    done += count;
                });
                if let Some(narrow) = narrow {
                    block.iter_mut().for_each(|x| *x = narrow(*x));
                }
                block
            }
        }
    }
}

/// Refuses bytes that do not start where elements of the type may.
pub(crate) fn aligned(bytes: &[u8], dtype: ScalarType) -> Result<()> {
    if !bytes.is_empty() && !(bytes.as_ptr() as usize).is_multiple_of(dtype.alignment()) {
        return Err(tensor::Error::Misaligned { dtype }.into());
    }
    Ok(())
}

/// What makes numbers those of a type narrower than the one they are computed in: integers wrap, halves are rounded.
fn narrowing<C: Compute>(dtype: ScalarType) -> Option<fn(C) -> C> {
    Some(match dtype {
        ScalarType::Byte => |x| C::of(x.into::<u8>()),
        ScalarType::Char => |x| C::of(x.into::<i8>()),
        ScalarType::Short => |x| C::of(x.into::<i16>()),
        ScalarType::Int => |x| C::of(x.into::<i32>()),
        _ => return conversion::<C>(C::DTYPE, dtype),
    })
}
