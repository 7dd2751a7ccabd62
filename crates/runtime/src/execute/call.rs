//! Calling a kernel or delegate: value ids are bound to views of memory, and results are written back.
//!
//! Outs are borrowed mutably and all other arguments immutably. An input that overlaps an out is copied to temporary
//! memory first, unless the kernel declares that this input may alias the first out (in-place) and both have exactly
//! the same bytes and meta. So no callee ever sees overlapping readable and writable memory.

use crate::error::ExecuteError;
use crate::open::ConstantBytes;
use crate::plan::state::{State, constant_bytes, used_extent};
use crate::plan::{ArgRef, Id, OutRef, Storage, TensorValue, Value};
use pteron_operator::{Arg, Error as KernelError, Out, Scratch, ScratchBuffer};
use pteron_tensor::{Arenas, Extent, Scalar, Shape, ShapeDynamism, TensorMeta, TensorView, TensorViewMut};
use smallvec::SmallVec;

pub(crate) type ArgList<'a> = SmallVec<[Arg<'a>; 12]>;
pub(crate) type OutList<'a> = SmallVec<[Out<'a>; 3]>;
type Result<T, E = ExecuteError> = std::result::Result<T, E>;

/// A kernel, delegate or region that can be called with views.
pub(crate) trait Callable {
    /// Computes the outs and returns them.
    fn call<'x>(self, args: ArgList<'x>, outs: OutList<'x>) -> Result<OutList<'x>>
    where
        Self: 'x;
}

/// A result to be written into the value table once the views of the call are dropped.
enum Produced {
    Scalar(Id, Scalar),
    View { to: Id, of: Id, sizes: Shape },
}

impl State {
    /// Calls `callee` with views of the arguments and outs, and writes its scalar and view results to the value table.
    /// `in_place` lists the arguments that may alias the first out.
    pub(crate) fn call(
        &mut self,
        args: &[ArgRef],
        outs: &[OutRef],
        in_place: &[usize],
        scratch: &Scratch,
        callee: impl Callable,
    ) -> Result<()> {
        let mut ids: SmallVec<[Id; 4]> = SmallVec::new();
        let mut extents: SmallVec<[Extent; 4]> = SmallVec::new();
        for id in outs.iter().flat_map(out_tensors) {
            extents.push(self.writable_extent(id)?);
            ids.push(id);
        }
        let mut metas: SmallVec<[TensorMeta; 2]> = SmallVec::new();
        // Meta copies of tensors that are both read and written: the out borrows the meta, the argument this copy.
        let mut shadows: SmallVec<[(Id, TensorMeta); 1]> = SmallVec::new();
        for arg in args {
            if let ArgRef::Value(id) = *arg
                && ids.contains(&id)
                && let Some(t) = self.values[id].tensor()
            {
                shadows.push((id, t.meta.clone()));
            }
        }
        let first_out = outs.first().and_then(|o| if let OutRef::Tensor(id) = o { Some(*id) } else { None });
        let first_meta = first_out.and_then(|id| self.values[id].tensor()).map(|t| t.meta.clone());
        for &id in &ids {
            // For an id that appears twice among the outs, the second take finds an empty meta, and borrowing its
            // extent again fails below.
            metas.push(self.values[id].tensor_mut().map(|t| std::mem::take(&mut t.meta)).unwrap_or_default());
        }
        let attempt = || {
            let binder = Binder {
                values: &self.values,
                constants: &self.constants,
                shadows: &shadows,
                extents: &extents,
                first: first_meta.as_ref().filter(|m| m.dynamism() == ShapeDynamism::Static),
                in_place,
            };
            let temps = binder.copy_overlapping_inputs(args, &self.arenas, scratch)?;
            let mut loan = self.arenas.lend();
            let mut views: SmallVec<[TensorViewMut<'_>; 4]> = SmallVec::new();
            for (meta, extent) in metas.iter_mut().zip(&extents) {
                views.push(TensorViewMut::new(meta, loan.exclusive(*extent)?)?);
            }
            let out_list = bind_outs(outs, views);
            let mut arg_list = ArgList::new();
            for (position, arg) in args.iter().enumerate() {
                arg_list.push(binder.bind_arg(position, *arg, &temps, &mut loan)?);
            }
            let written = callee.call(arg_list, out_list)?;
            collect_produced(outs, written)
        };
        let result = pteron_pool::interruptible(attempt).unwrap_or_else(|why| Err(why.into()));
        for (&id, meta) in ids.iter().zip(metas).rev() {
            if let Some(t) = self.values[id].tensor_mut() {
                t.meta = meta;
            }
        }
        for p in result? {
            match p {
                Produced::Scalar(id, s) => self.values[id] = s.into(),
                Produced::View { to, of, sizes } => self.make_view(to, of, &sizes)?,
            }
        }
        Ok(())
    }

    /// The arena extent that an out writes: the value's current storage if that is in an arena, else its planned storage.
    fn writable_extent(&mut self, id: Id) -> Result<Extent> {
        let t = self.values[id].tensor_mut().ok_or_else(|| {
            KernelError::invalid(format!("value {id} is written as a tensor but is not one"))
        })?;
        if !matches!(t.storage, Storage::Arena(_)) {
            t.storage = t.home;
        }
        match t.storage {
            Storage::Arena(extent) => Ok(extent),
            Storage::Constant(_) => {
                Err(KernelError::invalid(format!("value {id} is a constant and cannot be written")).into())
            }
            Storage::Nowhere => Err(ExecuteError::NoMemory(id)),
        }
    }
}

fn out_tensors(out: &OutRef) -> impl Iterator<Item = Id> {
    let ids: &[Id] = match out {
        OutRef::Tensor(id) => std::slice::from_ref(id),
        OutRef::Tensors(ids) => ids,
        OutRef::Scalar(_) | OutRef::View { .. } => &[],
    };
    ids.iter().copied()
}

fn bind_outs<'a>(outs: &[OutRef], views: SmallVec<[TensorViewMut<'a>; 4]>) -> OutList<'a> {
    let mut views = views.into_iter();
    outs.iter()
        .map(|out| match out {
            OutRef::Tensor(_) => Out::Tensor(views.next().expect("one view an out")),
            OutRef::Tensors(ids) => Out::Tensors(views.by_ref().take(ids.len()).collect()),
            OutRef::Scalar(_) => Out::Scalar(None),
            OutRef::View { .. } => Out::View(None),
        })
        .collect()
}

fn collect_produced(outs: &[OutRef], written: OutList<'_>) -> Result<SmallVec<[Produced; 2]>> {
    let mut list = SmallVec::new();
    for (out_ref, out) in outs.iter().zip(written) {
        match (out_ref, out) {
            (OutRef::Scalar(id), Out::Scalar(Some(s))) => list.push(Produced::Scalar(*id, s)),
            (OutRef::View { to, of }, Out::View(Some(sizes))) => {
                list.push(Produced::View { to: *to, of: *of, sizes });
            }
            (_, Out::Scalar(None) | Out::View(None)) => {
                return Err(KernelError::invalid("the kernel returned no result").into());
            }
            _ => {}
        }
    }
    Ok(list)
}

/// Copies of the inputs that overlap an out, each with the input's value id.
type Temps<'a> = SmallVec<[(Id, ScratchBuffer<'a, u8>); 1]>;

struct Binder<'a> {
    values: &'a [Value],
    constants: &'a [ConstantBytes],
    shadows: &'a [(Id, TensorMeta)],
    /// The arena extents of the call's outs.
    extents: &'a [Extent],
    /// The meta of the first out before the call; `None` if it is not a tensor of static shape.
    first: Option<&'a TensorMeta>,
    in_place: &'a [usize],
}

impl<'a> Binder<'a> {
    fn tensor(&self, id: Id) -> Result<(&'a TensorMeta, &'a TensorValue)> {
        let t = self.values[id].tensor().ok_or(ExecuteError::NoMemory(id))?;
        let shadow = self.shadows.iter().find(|(s, _)| *s == id);
        Ok((shadow.map_or(&t.meta, |(_, meta)| meta), t))
    }

    /// Whether an argument aliases the first out in the way that the kernel allows.
    fn shares_first_out(&self, position: usize, meta: &TensorMeta, extent: Extent) -> bool {
        self.in_place.contains(&position)
            && self.first == Some(meta)
            && self.extents.first().is_some_and(|e| e.arena == extent.arena && e.offset == extent.offset)
            && self.extents[1..].iter().all(|e| !e.overlaps(&extent))
    }

    /// Copies every input that overlaps an out, except inputs that may alias the first out.
    fn copy_overlapping_inputs<'s>(
        &self,
        args: &[ArgRef],
        arenas: &Arenas,
        scratch: &'s Scratch,
    ) -> Result<Temps<'s>> {
        let mut temps = Temps::new();
        let mut copy = |id: Id, position: Option<usize>| -> Result<()> {
            let (meta, t) = self.tensor(id)?;
            let Storage::Arena(extent) = t.storage else { return Ok(()) };
            let extent = used_extent(extent, meta);
            if !self.extents.iter().any(|e| e.overlaps(&extent))
                || position.is_some_and(|p| self.shares_first_out(p, meta, extent))
                || temps.iter().any(|(done, _)| *done == id)
            {
                return Ok(());
            }
            let mut temp = scratch.take::<u8>(extent.len)?;
            temp.copy_from_slice(arenas.bytes(extent)?);
            temps.push((id, temp));
            Ok(())
        };
        for (position, arg) in args.iter().enumerate() {
            let ArgRef::Value(id) = *arg else { continue };
            match &self.values[id] {
                Value::Tensor(_) => copy(id, Some(position))?,
                Value::Tensors(ids) => ids.iter().try_for_each(|&id| copy(id, None))?,
                Value::OptionalTensors(ids) => ids.iter().flatten().try_for_each(|&id| copy(id, None))?,
                _ => {}
            }
        }
        Ok(temps)
    }

    fn bind_arg<'v>(
        &self,
        position: usize,
        arg: ArgRef,
        temps: &'v Temps<'_>,
        loan: &mut pteron_tensor::Loan<'v>,
    ) -> Result<Arg<'v>>
    where
        'a: 'v,
    {
        let id = match arg {
            ArgRef::Out(i) => return Ok(Arg::Out(i)),
            ArgRef::Value(id) => id,
        };
        Ok(match &self.values[id] {
            Value::None => Arg::None,
            Value::Int(v) => Arg::Int(*v),
            Value::Double(v) => Arg::Double(*v),
            Value::Bool(v) => Arg::Bool(*v),
            Value::Str(s) => Arg::Str(s),
            Value::Ints(ids) => Arg::Ints(self.ints(ids)?),
            Value::Doubles(v) => Arg::Doubles(v),
            Value::Bools(v) => Arg::Bools(v),
            Value::Tensor(_) => {
                let (meta, t) = self.tensor(id)?;
                if let Storage::Arena(extent) = t.storage
                    && self.shares_first_out(position, meta, used_extent(extent, meta))
                {
                    return Ok(Arg::InPlace { out: 0, meta });
                }
                Arg::Tensor(self.bind_view(id, temps, loan)?)
            }
            Value::Tensors(ids) => {
                let mut list = SmallVec::new();
                for &id in ids.iter() {
                    list.push(self.bind_view(id, temps, loan)?);
                }
                Arg::Tensors(list)
            }
            Value::OptionalTensors(ids) => {
                let mut list = SmallVec::new();
                for id in ids.iter() {
                    list.push(id.map(|id| self.bind_view(id, temps, loan)).transpose()?);
                }
                Arg::OptionalTensors(list)
            }
        })
    }

    fn ints(&self, ids: &[Id]) -> Result<SmallVec<[i64; 8]>> {
        ids.iter()
            .map(|&id| match &self.values[id] {
                Value::Int(v) => Ok(*v),
                other => Err(KernelError::invalid(format!(
                    "value {id}, an element of a list of integers, is {}",
                    other.kind()
                ))
                .into()),
            })
            .collect()
    }

    fn bind_view<'v>(
        &self,
        id: Id,
        temps: &'v Temps<'_>,
        loan: &mut pteron_tensor::Loan<'v>,
    ) -> Result<TensorView<'v>>
    where
        'a: 'v,
    {
        let (meta, t) = self.tensor(id)?;
        let bytes = match t.storage {
            _ if temps.iter().any(|(done, _)| *done == id) => {
                temps.iter().find(|(done, _)| *done == id).map_or(&[][..], |(_, b)| b)
            }
            Storage::Arena(extent) => loan.shared(used_extent(extent, meta))?,
            Storage::Constant(c) => constant_bytes(self.constants, c, meta)?,
            Storage::Nowhere => return Err(ExecuteError::NoMemory(id)),
        };
        Ok(TensorView::new(meta, bytes)?)
    }
}
