use super::super::isa::Isa;
use super::*;

fn test_values(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 100.0 - 5.0).collect()
}

fn close(got: f32, want: f64, tolerance: f64) -> bool {
    (f64::from(got) - want).abs() <= tolerance * want.abs().max(1e-3)
}

#[test]
fn sums_and_extremes() {
    let mut first: Vec<f32> = Vec::new();
    for isa in Isa::available() {
        for (at, n) in [0, 1, 15, 16, 17, 511, 512, 513, 5000].into_iter().enumerate() {
            let x = test_values(n);
            let want: f64 = x.iter().map(|&x| f64::from(x)).sum();
            let got = sum(isa, &x);
            assert!((f64::from(got) - want).abs() < 1e-5 * (n as f64 + 1.0));
            if at == first.len() {
                first.push(got);
            }
            assert_eq!(first[at], got, "the sum of {n} differs at {isa:?}");
            let squares: f64 = x.iter().map(|&x| f64::from(x * x)).sum();
            assert!(close(sum_of_squares(isa, &x), squares, 1e-5));
            assert_eq!(max(isa, &x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            assert_eq!(min(isa, &x), x.iter().copied().fold(f32::INFINITY, f32::min));
            for i in [0, n / 2, n.saturating_sub(1)] {
                let mut x = x.clone();
                if i < n {
                    x[i] = f32::NAN;
                    assert!(max(isa, &x).is_nan() && min(isa, &x).is_nan() && sum(isa, &x).is_nan());
                }
            }
        }
    }
}

#[test]
fn softmax_matches_f64() {
    for isa in Isa::available() {
        for (outer, n, inner) in [(3, 1, 1), (5, 7, 1), (2, 100, 1), (2, 9, 5), (1, 33, 70), (3, 4, 130)] {
            let x = test_values(outer * n * inner);
            for log in [false, true] {
                let mut out = vec![0.0; x.len()];
                softmax_across(&Pool::new(2), isa, log, (n, inner), &x, &mut out);
                for o in 0..outer {
                    for i in 0..inner {
                        let at = |j: usize| (o * n + j) * inner + i;
                        let max = (0..n).map(|j| x[at(j)]).fold(f32::MIN, f32::max);
                        let e = |j: usize| f64::from(x[at(j)] - max).exp();
                        let sum: f64 = (0..n).map(e).sum();
                        for j in 0..n {
                            let want = if log { e(j).ln() - sum.ln() } else { e(j) / sum };
                            assert!(
                                close(out[at(j)], want, 2e-6),
                                "{isa:?} {n} {inner}: {} {want}",
                                out[at(j)]
                            );
                        }
                    }
                }
                if inner == 1 {
                    let mut again = x.clone();
                    softmax_in_place(&Pool::serial(), isa, log, n, &mut again);
                    assert_eq!(again, out);
                }
            }
        }
        let mut row = [1.0, f32::NAN, 2.0];
        softmax_in_place(&Pool::serial(), isa, false, 3, &mut row);
        assert!(row.iter().all(|x| x.is_nan()));
        let mut row = [f32::NEG_INFINITY, 0.0];
        softmax_in_place(&Pool::serial(), isa, false, 2, &mut row);
        assert_eq!(row, [0.0, 1.0]);
    }
}

#[test]
fn norms_match_f64() {
    for isa in Isa::available() {
        for n in [1, 5, 16, 100, 768, 1000] {
            let x = test_values(4 * n);
            let (weight, bias) = (test_values(n), test_values(2 * n)[n..].to_vec());
            for (w, b) in [
                (None, None),
                (Some(&weight[..]), None),
                (Some(&weight[..]), Some(&bias[..])),
                (None, Some(&bias[..])),
            ] {
                let (mut layer, mut rms) = (vec![0.0; 4 * n], vec![0.0; 4 * n]);
                layer_norm(&Pool::new(2), isa, 1e-5, n, &x, (w, b), &mut layer);
                rms_norm(&Pool::new(2), isa, 1e-5, n, &x, w, &mut rms);
                for (r, row) in x.chunks(n).enumerate() {
                    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
                    let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n as f64;
                    let square = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
                    for j in 0..n {
                        let (w, b) = (w.map_or(1.0, |w| f64::from(w[j])), b.map_or(0.0, |b| f64::from(b[j])));
                        let x = f64::from(row[j]);
                        let want = (x - mean) / (variance + 1e-5).sqrt() * w + b;
                        assert!((f64::from(layer[r * n + j]) - want).abs() < 1e-4, "{isa:?} {n}");
                        let want = x / (square + 1e-5).sqrt() * w;
                        assert!(close(rms[r * n + j], want, 1e-5), "{isa:?} {n}");
                    }
                }
            }
        }
        let mut out = vec![0.0; 100];
        affine(isa, 2.0, 1.0, &test_values(100), &mut out);
        assert_eq!(out[0], test_values(1)[0] * 2.0 + 1.0);
    }
}

#[test]
fn group_norm_factors_match_f64() {
    use super::super::conv::Layout;
    for isa in Isa::available() {
        for (images, channels, pixels, groups) in
            [(1, 4, 9, 2), (2, 6, 700, 3), (1, 40, 1000, 8), (1, 1, 1, 1)]
        {
            let planes = test_values(images * channels * pixels);
            let mut rows = planes.clone();
            for (i, &x) in planes.iter().enumerate() {
                let (image, c, p) = (i / (channels * pixels), i / pixels % channels, i % pixels);
                rows[(image * pixels + p) * channels + c] = x;
            }
            let (weight, bias) = (test_values(channels), test_values(channels + 1)[1..].to_vec());
            for (layout, x) in [(Layout::ChannelsFirst, &planes), (Layout::ChannelsLast, &rows)] {
                let (mut scale, mut shift) = (vec![0.0; images * channels], vec![0.0; images * channels]);
                group_norm_factors(
                    &Pool::new(2),
                    isa,
                    0.5,
                    (channels, pixels, groups),
                    layout,
                    x,
                    (Some(&weight), Some(&bias)),
                    (&mut scale, &mut shift),
                );
                for (i, (&scale, &shift)) in scale.iter().zip(&shift).enumerate() {
                    let (image, c) = (i / channels, i % channels);
                    let each = channels / groups;
                    let n = each * pixels;
                    let group = &planes[image * channels * pixels + c / each * n..][..n];
                    let mean = group.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
                    let variance =
                        group.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n as f64;
                    let want = f64::from(weight[c]) / (variance + 0.5).sqrt();
                    assert!(close(scale, want, 1e-5), "{layout:?}: {scale} for {want}");
                    let want = f64::from(bias[c]) - mean * want;
                    assert!((f64::from(shift) - want).abs() < 1e-4, "{layout:?}: {shift} for {want}");
                }
            }
        }
    }
}

#[test]
fn long_sums_are_as_exact_as_f64() {
    let n = 1 << 20;
    for x in [vec![0.1f32; n], (0..n).map(|i| (i % 1000 * 7919 % 1000) as f32 * 1e-3 + 1e-3).collect()] {
        let exact = x.iter().map(|&x| f64::from(x)).sum::<f64>();
        let squares = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        let mean_of = exact / n as f64;
        let variance = x.iter().map(|&x| (f64::from(x) - mean_of).powi(2)).sum::<f64>() / n as f64;
        let near = |what: &str, got: f32, want: f64| {
            let error = (f64::from(got) - want).abs() / want.abs();
            assert!(error < 1e-6, "{what}: {got} for {want}, {error:e} off");
        };
        for isa in Isa::available() {
            near("sum", sum(isa, &x), exact);
            near("mean", mean(isa, &x), mean_of);
            near("sum of squares", sum_of_squares(isa, &x), squares);
            let (m, rstd) = mean_rstd(isa, &x, 1.0);
            near("mean of a norm", m, mean_of);
            near("deviation of a norm", rstd, 1.0 / (variance + 1.0).sqrt());
            for columns in [1, 3, 64, 100] {
                let mut out = vec![0.0; columns];
                let all = n / columns * columns;
                column_means(&Pool::serial(), isa, &x[..all], &mut out);
                let expected = x[..all].iter().map(|&x| f64::from(x)).sum::<f64>() / all as f64;
                let actual = out.iter().map(|&x| f64::from(x)).sum::<f64>() / columns as f64;
                near("means of columns", actual as f32, expected);
                let mut again = vec![0.0; columns];
                column_means(&Pool::new(3), isa, &x[..all], &mut again);
                assert_eq!(again, out);
                row_means(&Pool::new(2), isa, &x[..all], &mut again);
                let actual = again.iter().map(|&x| f64::from(x)).sum::<f64>() / columns as f64;
                near("means of rows", actual as f32, expected);
            }
            for layout in
                [super::super::conv::Layout::ChannelsFirst, super::super::conv::Layout::ChannelsLast]
            {
                let (mut scale, mut shift) = ([0.0; 4], [0.0; 4]);
                let factors = (&mut scale[..], &mut shift[..]);
                group_norm_factors(
                    &Pool::serial(),
                    isa,
                    1.0,
                    (4, n / 4, 1),
                    layout,
                    &x,
                    (None, None),
                    factors,
                );
                near("scale of a group", scale[1], 1.0 / (variance + 1.0).sqrt());
                near("shift of a group", -shift[1] / scale[1], mean_of);
            }
            let most = max(isa, &x);
            let total = x.iter().map(|&x| (f64::from(x) - f64::from(most)).exp()).sum::<f64>();
            let mut out = vec![0.0; n];
            softmax(&Pool::serial(), isa, true, n, &x, &mut out);
            near("logarithm of a sum", x[5] - most - out[5], total.ln());
            // Two columns, each of which sums to about half of the whole.
            softmax_across(&Pool::serial(), isa, true, (n / 2, 2), &x, &mut out);
            let halves = (most - x[5] + out[5]).exp() + (most - x[4] + out[4]).exp();
            assert!((f64::from(halves) * total / 4.0 - 1.0).abs() < 1e-3, "{halves}");
        }
    }
}

/// Compares with a scan of the middle dimension, in which NaN beats everything and the first of equals wins.
#[test]
fn extremes_of_rows_and_columns() {
    for isa in Isa::available() {
        for (outer, n, inner) in
            [(1, 1, 1), (3, 5, 1), (2, 100, 1), (1, 5000, 1), (2, 9, 5), (3, 33, 70), (1, 2, 130)]
        {
            let mut x = test_values(outer * n * inner);
            let nan = x.len() / 2;
            for with_nan in [false, true] {
                if with_nan {
                    x[nan..].iter_mut().step_by(7).for_each(|x| *x = f32::NAN);
                }
                for least in [false, true] {
                    let (mut values, mut places) = (vec![0.0; outer * inner], vec![0; outer * inner]);
                    let out = Extremes { least, values: Some(&mut values), places: Some(&mut places) };
                    extremes(&Pool::new(2), isa, (n, inner), &x, out);
                    for (i, (value, place)) in values.into_iter().zip(places).enumerate() {
                        let at = |j: usize| x[(i / inner * n + j) * inner + i % inner];
                        let best =
                            (1..n).fold(0, |best, j| if at(j).beats(at(best), least) { j } else { best });
                        assert_eq!(place, best as i64, "{isa:?} {n} {inner}");
                        assert!(value.is_same(at(best)), "{isa:?} {n} {inner}: {value}");
                    }
                }
            }
        }
    }
    let mut places = [9];
    let out = Extremes { least: true, values: None, places: Some(&mut places) };
    extremes(Pool::alone(), Isa::default(), (3, 1), &[4i64, i64::MIN, i64::MIN], out);
    assert_eq!(places, [1]);
}

#[test]
fn range_is_minimum_and_maximum_in_one_pass() {
    let same = |a: (f32, f32), b: (f32, f32)| {
        let bits = |(low, high): (f32, f32)| (low.to_bits(), high.to_bits());
        bits(a) == bits(b) || a.0.is_nan() && b.0.is_nan() && a.1.is_nan() && b.1.is_nan()
    };
    for isa in Isa::available() {
        assert_eq!(min_max(isa, &[]), (f32::INFINITY, f32::NEG_INFINITY));
        for len in [1, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 197, 300] {
            let plain: Vec<f32> = (0..len).map(|i| ((i * 7919) % 1013) as f32 - 500.0).collect();
            for special in [0.25, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45] {
                for at in [0, len / 2, len - 1] {
                    let mut x = plain.clone();
                    x[at] = special;
                    assert!(
                        same(min_max(isa, &x), (min(isa, &x), max(isa, &x))),
                        "{special} at {at} of {len}"
                    );
                }
            }
        }
    }
}
