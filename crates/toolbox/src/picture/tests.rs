use super::*;
use crate::{Result, npy};
use pteron_tensor::{ScalarType, Tensor, TensorMeta};
use std::path::{Path, PathBuf};

/// A picture of 2 by 2 pixels: red and green, blue and white.
fn four_colours(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("pteron-{name}-{}.png", std::process::id()));
    let pixels = vec![255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255];
    image::RgbImage::from_raw(2, 2, pixels).expect("four pixels").save(&path).expect("a file");
    path
}

fn meta(dtype: ScalarType, sizes: &[usize]) -> TensorMeta {
    TensorMeta::contiguous(dtype, sizes).expect("a small tensor")
}

fn plain(path: &Path, dtype: ScalarType, sizes: &[usize]) -> Result<Tensor> {
    read(path, &meta(dtype, sizes), &Preparation::default())
}

#[test]
fn channels_are_planes_unless_they_come_last() {
    let path = four_colours("planes");
    let t = plain(&path, ScalarType::Float, &[1, 3, 2, 2]).unwrap();
    assert_eq!(t.as_slice::<f32>().unwrap(), [1., 0., 0., 1., 0., 1., 0., 1., 0., 0., 1., 1.]);
    let t = plain(&path, ScalarType::Byte, &[3, 2, 2]).unwrap();
    assert_eq!(t.as_slice::<u8>().unwrap()[..4], [255, 0, 0, 255]);
    let last = Preparation { channels_last: true, ..Preparation::default() };
    let t = read(&path, &meta(ScalarType::Byte, &[1, 2, 2, 4]), &last).unwrap();
    assert_eq!(t.as_slice::<u8>().unwrap()[..8], [255, 0, 0, 255, 0, 255, 0, 255]);
    let grey = plain(&path, ScalarType::Byte, &[1, 2, 2]).unwrap();
    assert_eq!(grey.as_slice::<u8>().unwrap(), [76, 150, 29, 255]);
    std::fs::remove_file(path).unwrap();
}

/// Runs each transform of `tools/reference/pictures.py`, which recorded torchvision's results.
#[test]
fn results_match_torchvision() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pictures");
    let with = |preset: Preset, resize, crop| {
        let mut preparation = Preparation { resize, crop, ..Preparation::default() };
        preset.apply(&mut preparation);
        preparation
    };
    let as_it_is = Preparation::default();
    let cases = [
        ("imagenet", with(Preset::ImageNet, Some(Resize::Shorter(24)), Some((20, 20)))),
        ("stretched", as_it_is.clone()),
        ("stretched", with(Preset::Unit, Some(Resize::To(23, 18)), None)),
        ("larger", with(Preset::Signed, None, None)),
        ("padded", with(Preset::Unit, None, Some((32, 20)))),
        ("grey", as_it_is.clone()),
        ("opacity", as_it_is),
    ];
    for (name, preparation) in cases {
        let expected = npy::open(&folder.join(format!("{name}.npy"))).unwrap().read().unwrap();
        let picture = if name == "opacity" { "opacity.png" } else { "colours.png" };
        let found = read(&folder.join(picture), expected.meta(), &preparation).unwrap();
        let pairs = found.as_slice::<f32>().unwrap().iter().zip(expected.as_slice::<f32>().unwrap());
        let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 1e-6, "{name}: {most}");
    }
}

#[test]
fn formats_without_loss_hold_the_same_pixels() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pictures");
    for (png, others, sizes) in [
        ("colours.png", &["colours.bmp", "colours.webp"][..], [3, 29, 37]),
        ("opacity.png", &["opacity.webp"], [4, 13, 17]),
    ] {
        let bytes =
            |name| plain(&folder.join(name), ScalarType::Byte, &sizes).unwrap().to_vec::<u8>().unwrap();
        for other in others {
            assert!(bytes(png) == bytes(other), "{other}");
        }
    }
}

#[test]
fn a_lossy_webp_is_close_to_libwebp() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pictures");
    let expected = npy::open(&folder.join("lossy.npy")).unwrap().read().unwrap();
    let found = plain(&folder.join("lossy.webp"), ScalarType::Byte, &[3, 29, 37]).unwrap();
    let pairs = found.as_slice::<u8>().unwrap().iter().zip(expected.as_slice::<u8>().unwrap());
    let most = pairs.map(|(a, b)| a.abs_diff(*b)).max();
    assert!(most <= Some(1), "{most:?}");
}

#[test]
fn all_element_types_hold_the_same_picture() {
    let path = four_colours("types");
    let grey = |dtype| plain(&path, dtype, &[1, 2, 2]).unwrap();
    let of_f32 = grey(ScalarType::Float).to_vec::<f32>().unwrap();
    let doubles = grey(ScalarType::Double);
    assert_eq!(doubles.as_slice::<f64>().unwrap(), of_f32.iter().map(|&x| x.into()).collect::<Vec<f64>>());
    let halves = grey(ScalarType::Half).to_vec::<pteron_tensor::f16>().unwrap();
    assert_eq!(halves, of_f32.iter().map(|&x| pteron_tensor::f16::from_f32(x)).collect::<Vec<_>>());
    assert_eq!(grey(ScalarType::Short).as_slice::<i16>().unwrap(), [76, 150, 29, 255]);
    assert_eq!(grey(ScalarType::Int).as_slice::<i32>().unwrap(), [76, 150, 29, 255]);
    assert_eq!(grey(ScalarType::Long).as_slice::<i64>().unwrap(), [76, 150, 29, 255]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn values_are_scaled_by_channel() {
    let path = four_colours("values");
    let preparation = Preparation {
        scale: Some(1.0),
        mean: vec![55.0, 0.0, 255.0],
        std: vec![2.0],
        ..Preparation::default()
    };
    let t = read(&path, &meta(ScalarType::Float, &[3, 2, 2]), &preparation).unwrap();
    let values = t.as_slice::<f32>().unwrap();
    assert_eq!([values[0], values[4], values[8]], [100.0, 0.0, -127.5]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn unfit_inputs_and_options_are_explained() {
    let path = four_colours("unfit");
    let crop = |height, width| Preparation { crop: Some((height, width)), ..Preparation::default() };
    let resize = |resize| Preparation { resize: Some(resize), ..Preparation::default() };
    let two = Preparation { mean: vec![0.5, 0.5], ..Preparation::default() };
    let last = Preparation { channels_last: true, ..Preparation::default() };
    for (dtype, sizes, preparation, problem) in [
        (ScalarType::Float, &[4, 784][..], Preparation::default(), "[1, C, H, W] or [C, H, W]"),
        (ScalarType::Float, &[1, 2, 3, 5], Preparation::default(), "as an array"),
        (ScalarType::Float, &[1, 8, 8, 3], Preparation::default(), "say --channels-last"),
        (ScalarType::Float, &[1, 3, 8, 8], last, "leave --channels-last away"),
        (ScalarType::Float, &[2, 3, 8, 8], Preparation::default(), "it takes 2 pictures"),
        (ScalarType::Bool, &[1, 1, 2, 2], Preparation::default(), "an image gives floating-point numbers"),
        (ScalarType::Char, &[1, 1, 2, 2], Preparation::default(), "its bytes to uint8, int16"),
        (ScalarType::Int, &[3, 2, 2], two.clone(), "without scale, mean and std"),
        (ScalarType::Float, &[1, 1, 0, 2], Preparation::default(), "no picture has 0 by 2"),
        (ScalarType::Float, &[1, 1, 1 << 14, 1 << 14], Preparation::default(), "are the most"),
        (ScalarType::Byte, &[3, 2, 2], two.clone(), "without scale, mean and std"),
        (ScalarType::Float, &[3, 2, 2], two, "--mean has 2 values for 3 channels"),
        (ScalarType::Float, &[3, 2, 2], crop(2, 1), "2 by 1 (height by width)"),
        (ScalarType::Float, &[3, 2, 2], resize(Resize::Shorter(usize::MAX)), "no picture has"),
        (ScalarType::Float, &[3, 2, 2], crop(usize::MAX, 2), "no picture has"),
    ] {
        let e = read(&path, &meta(dtype, sizes), &preparation).unwrap_err().to_string();
        assert!(e.contains(problem), "{e}");
    }
    std::fs::remove_file(&path).unwrap();
    let e = plain(&path, ScalarType::Float, &[1, 2, 2]).unwrap_err().to_string();
    assert!(e.starts_with("cannot read"), "{e}");
}
