use super::*;
use proptest::prelude::*;

fn chain_with_skips(n: u32, reach: u32) -> Input {
    let edges = (1..n).flat_map(|v| [(v - 1, v), (v.saturating_sub(reach), v)]).filter(|(a, b)| a != b);
    Input { sizes: vec![(120, 40); n as usize], edges: edges.collect() }
}

#[test]
fn a_chain_is_a_straight_line() {
    let drawn = layout(&Input { sizes: vec![(100, 40), (60, 20), (140, 40)], edges: vec![(0, 1), (1, 2)] });
    assert_eq!(drawn.nodes.iter().map(|&(x, _)| x).collect::<Vec<_>>(), [70, 70, 70]);
    assert_eq!(drawn.routes, [[(70, 40), (70, 74)], [(70, 94), (70, 128)]]);
    assert_eq!((drawn.width, drawn.height), (140, 168));
}

#[test]
fn a_skip_edge_runs_beside_a_straight_chain() {
    let edges = vec![(0, 1), (1, 2), (2, 3), (0, 3)];
    let drawn = layout(&Input { sizes: vec![(100, 40); 4], edges });
    assert!(drawn.nodes.iter().all(|&(x, _)| x == drawn.nodes[0].0), "{drawn:?}");
    let skip = &drawn.routes[3];
    assert!(skip[1..skip.len() - 1].iter().all(|&(x, _)| (x - drawn.nodes[1].0).abs() >= 50), "{skip:?}");
}

#[test]
fn two_chains_do_not_cross() {
    // Two chains whose nodes are numbered alternately.
    let drawn = layout(&Input { sizes: vec![(50, 20); 6], edges: vec![(0, 3), (1, 2), (2, 5), (3, 4)] });
    let x = |v: usize| drawn.nodes[v].0;
    assert_eq!([x(0), x(1)], [x(3), x(2)]);
    assert_eq!([x(3), x(2)], [x(4), x(5)]);
}

#[test]
fn a_graph_without_nodes_is_empty() {
    assert_eq!(layout(&Input::default()), Layout::default());
    let nowhere = layout(&Input { sizes: vec![(10, 10)], edges: vec![(0, 0), (0, 7)] });
    assert_eq!(nowhere.routes, [[], []]);
}

#[test]
fn independent_nodes_are_spread_over_several_layers() {
    let drawn = layout(&Input { sizes: vec![(100, 40); 1000], edges: Vec::new() });
    assert!(drawn.width < 10_000 && drawn.height < 10_000, "{} x {}", drawn.width, drawn.height);
}

#[test]
fn drawings_are_about_as_wide_as_their_layers() {
    let tree = Input { sizes: vec![(80, 30); 1_500], edges: (1..1_500).map(|v| ((v - 1) / 3, v)).collect() };
    for input in [chain_with_skips(1_500, 8), tree] {
        let drawn = layout(&input);
        let mut layers = std::collections::HashMap::<u32, i64>::new();
        drawn.layers.iter().for_each(|&layer| *layers.entry(layer).or_default() += 1);
        let most = layers.values().max().unwrap() + 16;
        assert!(drawn.width < 4 * most * 150, "{} for {most}", drawn.width);
    }
}

#[test]
fn the_work_is_about_linear_in_the_graph() {
    let hub = |n: u32| Input {
        sizes: vec![(80, 30); n as usize],
        edges: (1..n).flat_map(|v| [(v - 1, v), (0, v), (v, n - 1)]).filter(|(a, b)| a != b).collect(),
    };
    let tree = |n: u32| Input {
        sizes: vec![(80, 30); n as usize],
        edges: (1..n).map(|v| ((v - 1) / 3, v)).collect(),
    };
    let skips = |n: u32| chain_with_skips(n, 8);
    for (make, nodes) in [(&skips as &dyn Fn(u32) -> Input, 6_000), (&hub, 1_500), (&tree, 1_500)] {
        let (small, large) = (layout(&make(nodes)).work, layout(&make(4 * nodes)).work);
        // Four times the nodes; the number of useful passes varies by less than a factor of two.
        assert!(large < small * 8, "{small} then {large}");
    }
}

fn arbitrary() -> impl Strategy<Value = Input> {
    (1..60usize).prop_flat_map(|n| {
        let node = (2..200u32, 10..60u32);
        let edges = prop::collection::vec((0..n as u32, 0..n as u32), 0..120);
        (prop::collection::vec(node, n), edges).prop_map(|(sizes, edges)| Input { sizes, edges })
    })
}

proptest! {
    #[test]
    fn nodes_do_not_overlap_and_edges_run_downward(input in arbitrary()) {
        let drawn = layout(&input);
        let within = |v: usize| {
            let ((x, y), (w, h)) = (drawn.nodes[v], input.sizes[v]);
            (x - i64::from(w.div_ceil(2)), x + i64::from(w.div_ceil(2)), y - i64::from(h / 2), y + i64::from(h / 2))
        };
        for a in 0..input.sizes.len() {
            let (left, right, top, bottom) = within(a);
            prop_assert!(left >= 0 && right <= drawn.width && top >= 0 && bottom <= drawn.height);
            for b in 0..a {
                let other = within(b);
                let disjoint = right <= other.0 || other.1 <= left || bottom <= other.2 || other.3 <= top;
                prop_assert!(disjoint, "{a} and {b}: {:?} {:?}", within(a), other);
            }
        }
        for (&(a, b), route) in input.edges.iter().zip(&drawn.routes) {
            prop_assert_eq!(route.is_empty(), a == b);
            if a == b { continue; }
            let (first, last) = (a.min(b) as usize, a.max(b) as usize);
            prop_assert!(drawn.nodes[first].1 < drawn.nodes[last].1);
            let mut down = route.clone();
            if a > b { down.reverse(); }
            prop_assert!(down.windows(2).all(|p| p[0].1 <= p[1].1), "{:?}", route);
            prop_assert_eq!((down[0].0, down[down.len() - 1].0), (drawn.nodes[first].0, drawn.nodes[last].0));
        }
        prop_assert_eq!(&layout(&input), &drawn);
    }
}

#[test]
fn residual_blocks_stay_in_a_straight_line() {
    // Consecutive residual blocks, as in most networks.
    let edges = (0..8u32).flat_map(|b| {
        [
            (4 * b, 4 * b + 1),
            (4 * b + 1, 4 * b + 2),
            (4 * b + 2, 4 * b + 3),
            (4 * b, 4 * b + 3),
            (4 * b + 3, 4 * b + 4),
        ]
    });
    let drawn = layout(&Input { sizes: vec![(100, 40); 33], edges: edges.collect() });
    assert!(drawn.nodes.iter().all(|&(x, _)| x == drawn.nodes[0].0), "{:?}", drawn.nodes);
}
