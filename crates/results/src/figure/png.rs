//! Renders a figure's SVG to PNG with the embedded font, because servers often have no fonts.

use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, Options, Tree, fontdb::Database};

use super::canvas::{FONT, POINTS_PER_MM};

/// A common requirement of publishers.
const PIXELS_PER_INCH: f64 = 300.0;

/// An SVG cannot be rendered as PNG.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PngError {
    /// The SVG is not well-formed.
    #[error(transparent)]
    Svg(#[from] usvg::Error),
    /// The image has no pixels, or needs more memory than is available.
    #[error("an image of {width} × {height} pixels cannot be allocated")]
    Size {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The PNG encoder failed.
    #[error("the PNG encoder failed: {0}")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Renders an SVG with this width in points to a PNG file that states its resolution.
///
/// # Errors
/// The SVG cannot be parsed or is too large.
pub(super) fn png(svg: &str, width: f64) -> Result<Vec<u8>, PngError> {
    let mut fonts = Database::new();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family("Arimo");
    let options = Options { fontdb: Arc::new(fonts), ..Options::default() };
    let tree = Tree::from_str(svg, &options)?;
    let size = tree.size();
    let scale = (width / 72.0 * PIXELS_PER_INCH) as f32 / size.width();
    let (width, height) =
        ((size.width() * scale).round() as u32, (size.height() * scale).round() as u32);
    let mut pixmap = Pixmap::new(width, height).ok_or(PngError::Size { width, height })?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixmap.as_mut());
    let file = pixmap.encode_png().map_err(|e| PngError::Encode(Box::new(e)))?;
    Ok(with_resolution(&file))
}

/// Inserts a `pHYs` chunk, so that programs show the image at its physical size.
fn with_resolution(file: &[u8]) -> Vec<u8> {
    /// PNG signature and IHDR chunk.
    const BEGIN: usize = 8 + 25;
    let per_metre = (PIXELS_PER_INCH / 25.4 * 1000.0).round() as u32;
    let mut chunk = b"pHYs".to_vec();
    chunk.extend(per_metre.to_be_bytes());
    chunk.extend(per_metre.to_be_bytes());
    chunk.push(1);
    let (begin, rest) = file.split_at(BEGIN.min(file.len()));
    let mut out = begin.to_vec();
    out.extend(9_u32.to_be_bytes());
    let sum = crc32fast::hash(&chunk);
    out.extend(chunk);
    out.extend(sum.to_be_bytes());
    out.extend(rest);
    out
}

/// Converts millimetres to points.
pub(super) fn points(mm: f64) -> f64 {
    mm * POINTS_PER_MM
}

#[cfg(test)]
mod tests {
    use super::super::canvas::{Anchor, Canvas, Style};
    use super::*;

    #[test]
    fn renders_text_without_system_fonts() {
        let mut canvas = Canvas::new(points(85.0), points(10.0));
        canvas.text((10.0, 20.0), Style::new(12.0, Anchor::Start), "sRTT (ms)");
        let file = png(&canvas.finish("t"), points(85.0)).unwrap();
        let picture = Pixmap::decode_png(&file).unwrap();
        assert_eq!((picture.width(), picture.height()), (1004, 118));
        let dark = picture.pixels().iter().filter(|p| p.red() < 100).count();
        assert!(dark > 300, "{dark} dark pixels");
        let at = file.windows(4).position(|four| four == b"pHYs").unwrap();
        assert_eq!(file[at + 4..at + 8], 11_811_u32.to_be_bytes());
    }
}
