//! Infers the sizes of results from those of operands, where a plan gives only upper bounds.

use ir::exported::{Argument, ExportedNode, ExportedProgram, IntArgument, Size, SymOp, VarType};

/// The sizes of a node's first result, if they can be inferred from its arguments.
pub(super) fn sizes_of(program: &ExportedProgram, node: &ExportedNode) -> Option<Vec<Size>> {
    let (_, name) = node.target.split_once('.')?;
    let name = name.split('.').next()?;
    let given = NodeArgs { program, node };
    let own = || given.tensor("self").or_else(|| given.tensor("input"));
    match name {
        "_clone_dim_order" | "_log_softmax" | "_softmax" | "_to_copy" | "_to_dim_order_copy" | "clone"
        | "cumsum" | "native_layer_norm" => own(),
        "permute" => {
            let x = own()?;
            let dims = given.known_ints("dims")?;
            dims.iter().map(|&dim| x.get(wrap(dim, x.len())?).cloned()).collect()
        }
        "t" => own().map(|x| x.into_iter().rev().collect()),
        "transpose" => {
            let mut x = own()?;
            let [a, b] = ["dim0", "dim1"].map(|name| wrap(given.int(name)?, x.len()));
            x.swap(a?, b?);
            Some(x)
        }
        "unsqueeze" => {
            let mut x = own()?;
            x.insert(wrap(given.int("dim")?, x.len() + 1)?, Size::Int(1));
            Some(x)
        }
        "squeeze" => {
            let mut x = own()?;
            let dims = given.known_ints("dim").or_else(|| Some(vec![given.int("dim")?]))?;
            let dims = dims.into_iter().map(|dim| wrap(dim, x.len())).collect::<Option<Vec<_>>>()?;
            let mut dim = 0;
            x.retain(|size| {
                dim += 1;
                !dims.contains(&(dim - 1)) || size.known() != Some(1)
            });
            Some(x)
        }
        "slice" => {
            let mut x = own()?;
            let dim = wrap(given.int("dim").unwrap_or(0), x.len())?;
            let (n, step) = (x[dim].known()?, given.int("step").unwrap_or(1));
            let end_of = |name, open| match node.arg(name) {
                None | Some(Argument::None) => Some(open),
                _ => given.int(name).map(|at| if at < 0 { at.saturating_add(n) } else { at }.clamp(0, n)),
            };
            let (start, end) = (end_of("start", 0)?, end_of("end", n)?);
            let room = end.saturating_sub(start).max(0);
            x[dim] = Size::Int(room.checked_add(step - 1)?.checked_div(step.max(1))?);
            Some(x)
        }
        "select" => {
            let mut x = own()?;
            x.remove(wrap(given.int("dim")?, x.len())?);
            Some(x)
        }
        "expand" => {
            let (x, sizes) = (own()?, given.sizes("size")?);
            let new = sizes.len().checked_sub(x.len())?;
            let size =
                |(i, size): (usize, Option<Size>)| size.or_else(|| x.get(i.checked_sub(new)?).cloned());
            sizes.into_iter().enumerate().map(size).collect()
        }
        "view" => {
            let sizes = given.sizes("size")?;
            let one = Size::Int(1);
            let product = |sizes: &mut dyn Iterator<Item = &Size>| sizes.fold(one.clone(), |a, b| a.mul(b));
            let rest = product(&mut sizes.iter().flatten());
            if sizes.iter().filter(|size| size.is_none()).count() > 1 {
                return None;
            }
            let left = || Some(product(&mut own()?.iter()).combine(SymOp::FloorDiv, &rest));
            sizes.iter().map(|size| size.clone().or_else(left)).collect()
        }
        "mm" | "bmm" | "addmm" => {
            let (a, b) = match name {
                "addmm" => (given.tensor("mat1")?, given.tensor("mat2")?),
                _ => (own()?, given.tensor("mat2")?),
            };
            let mut sizes = a;
            sizes.pop()?;
            sizes.push(b.last()?.clone());
            Some(sizes)
        }
        "linear" => {
            let (mut x, weight) = (given.tensor("input")?, given.tensor("weight")?);
            *x.last_mut()? = weight.first()?.clone();
            Some(x)
        }
        "embedding" => {
            let (mut sizes, table) = (given.tensor("indices")?, given.tensor("weight")?);
            sizes.push(table.last()?.clone());
            Some(sizes)
        }
        "cat" => {
            let Some(Argument::Vars(parts)) = node.arg("tensors") else { return None };
            let mut parts = parts.iter().map(|&part| Some(program.spec(part)?.sizes.clone()));
            let mut sizes = parts.next()??;
            let dim = wrap(given.int("dim").unwrap_or(0), sizes.len())?;
            for part in parts {
                sizes[dim] = sizes[dim].add(part?.get(dim)?);
            }
            Some(sizes)
        }
        _ => None,
    }
}

/// The arguments of a node.
struct NodeArgs<'a> {
    program: &'a ExportedProgram,
    node: &'a ExportedNode,
}

impl NodeArgs<'_> {
    fn tensor(&self, name: &str) -> Option<Vec<Size>> {
        let var = self.node.arg(name)?.var()?;
        Some(self.program.spec(var)?.sizes.clone())
    }

    fn int(&self, name: &str) -> Option<i64> {
        match self.node.arg(name)? {
            Argument::Int(number) => Some(*number),
            _ => None,
        }
    }

    fn known_ints(&self, name: &str) -> Option<Vec<i64>> {
        let Argument::Ints(items) = self.node.arg(name)? else { return None };
        let known = |item: &IntArgument| match item {
            IntArgument::Int(number) => Some(*number),
            IntArgument::Var(_) => None,
        };
        items.iter().map(known).collect()
    }

    /// The sizes that a call specifies; `None` for those that it leaves to be inferred.
    fn sizes(&self, name: &str) -> Option<Vec<Option<Size>>> {
        let Argument::Ints(items) = self.node.arg(name)? else { return None };
        let size = |item: &IntArgument| match item {
            IntArgument::Int(number) if *number < 0 => Some(None),
            IntArgument::Int(number) => Some(Some(Size::Int(*number))),
            IntArgument::Var(var) => match &self.program.var(*var).ty {
                VarType::Int(size) => Some(Some(size.clone())),
                _ => None,
            },
        };
        items.iter().map(size).collect()
    }
}

/// A dimension counted from the first; `None` if it is out of range.
pub(super) fn wrap(dim: i64, rank: usize) -> Option<usize> {
    let dim = usize::try_from(if dim < 0 { dim.checked_add(rank as i64)? } else { dim }).ok()?;
    (dim < rank).then_some(dim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::exported::{Source, TensorSpec};
    use std::sync::Arc;
    use tensor::{DimOrder, ScalarType};

    /// The inferred sizes of a call of an operator on a tensor of sizes `s, 4, 1`, with other arguments.
    fn sizes(target: &str, args: Vec<(&str, Argument)>) -> Option<String> {
        let mut program = ExportedProgram::new("forward");
        let sizes = vec![Size::symbol("s"), Size::Int(4), Size::Int(1)];
        let dim_order = DimOrder::contiguous(3);
        let spec = TensorSpec { dtype: ScalarType::Float, sizes, dim_order };
        let x = program.add_var("x", VarType::Tensor(spec));
        let mut all: Vec<(Arc<str>, Argument)> = vec![("self".into(), Argument::Var(x))];
        all.extend(args.into_iter().map(|(name, arg)| (name.into(), arg)));
        let source = Arc::<Source>::default();
        let node = ExportedNode { target: target.into(), args: all, outputs: Vec::new(), source };
        let found = sizes_of(&program, &node)?;
        Some(found.iter().map(|size| size.to_string()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn sizes_follow_from_operands() {
        let ints = |items: &[i64]| Argument::ints(items);
        let of = |target, args| sizes(target, args).unwrap();
        assert_eq!(of("aten.permute.default", vec![("dims", ints(&[1, -1, 0]))]), "4 1 s");
        assert_eq!(
            of("aten.transpose.int", vec![("dim0", Argument::Int(0)), ("dim1", Argument::Int(-2))]),
            "4 s 1"
        );
        assert_eq!(of("aten.unsqueeze.default", vec![("dim", Argument::Int(-1))]), "s 4 1 1");
        assert_eq!(of("aten.squeeze.dims", vec![("dim", ints(&[0, 2]))]), "s 4");
        let part = vec![
            ("dim", Argument::Int(1)),
            ("start", Argument::Int(-3)),
            ("end", Argument::Int(9)),
            ("step", Argument::Int(2)),
        ];
        assert_eq!(of("aten.slice.Tensor", part), "s 2 1");
        assert_eq!(of("aten.select.int", vec![("dim", Argument::Int(1))]), "s 1");
        assert_eq!(of("aten.expand.default", vec![("size", ints(&[2, -1, -1, 5]))]), "2 s 4 5");
        assert_eq!(of("aten.view.default", vec![("size", ints(&[2, 2]))]), "2 2");
        assert_eq!(sizes("aten.view.default", vec![("size", ints(&[-1, -1]))]), None);
        assert_eq!(sizes("aten.nonzero.default", vec![]), None);
        assert_eq!(sizes("aten.select.int", vec![("dim", Argument::Int(3))]), None);
    }
}
