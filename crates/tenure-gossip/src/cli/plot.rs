//! Small charts as SVG: lines over a logarithmic axis of group sizes, or bars.
