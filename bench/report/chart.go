package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// Chart is a picture of numbers, with a sentence that says what to see in it.
// Lines are drawn over X and Y; Bars, where there are any, lie on their side and
// are made of parts that Legend names.
type Chart struct {
	Title  string   `json:"title"`
	Says   string   `json:"says"`
	X      Axis     `json:"x"`
	Y      Axis     `json:"y"`
	Lines  []Line   `json:"lines,omitempty"`
	Bars   []Bar    `json:"bars,omitempty"`
	Legend []string `json:"legend,omitempty"`
}

// Axis is a direction of a chart.
type Axis struct {
	Label string `json:"label"`
	Unit  Unit   `json:"unit"`
	Log   bool   `json:"log,omitempty"`
	// Nines is an axis of shares that spreads 90 %, 99 %, 99.9 % evenly.
	Nines bool `json:"nines,omitempty"`
}

// Line is a row of points, in the order of X.
type Line struct {
	Name   string       `json:"name"`
	Points [][2]float64 `json:"points"`
	Ours   bool         `json:"ours,omitempty"`
}

// Bar is one bar of parts.
type Bar struct {
	Name  string    `json:"name"`
	Parts []float64 `json:"parts"`
	Other bool      `json:"other,omitempty"` // of one part, which is not ours: drawn paler
}

// The picture is drawn on a field of this size, which the page scales.
const (
	chartWidth  = 760
	chartHeight = 330
	left, right = 78, 30
	top, bottom = 30, 52
)

// SVG draws the chart. Colours are classes c0, c1 … which the page defines, for
// light and dark.
func (c Chart) SVG() string {
	if len(c.Bars) > 0 {
		return c.bars()
	}
	return c.lines()
}

func (c Chart) lines() string {
	var xs, ys []float64
	for _, l := range c.Lines {
		for _, p := range l.Points {
			xs, ys = append(xs, p[0]), append(ys, p[1])
		}
	}
	x := c.X.scale(xs, left, chartWidth-right, false)
	y := c.Y.scale(ys, chartHeight-bottom, top, true)

	var b svg
	b.open(chartHeight, c.Title)
	for _, t := range y.ticks {
		b.line("grid", left, y.at(t), chartWidth-right, y.at(t))
		b.text("tick", left-8, y.at(t)+4, "end", c.Y.tick(t))
	}
	for _, t := range x.ticks {
		b.line("grid", x.at(t), top, x.at(t), chartHeight-bottom)
		b.text("tick", x.at(t), chartHeight-bottom+18, "middle", c.X.tick(t))
	}
	b.text("label", (left+chartWidth-right)/2, chartHeight-8, "middle", c.X.Label)
	b.text("label", left-70, 13, "start", c.Y.Label)
	// Ours is drawn last, over the others.
	for _, ours := range []bool{false, true} {
		for i, l := range c.Lines {
			if l.Ours == ours {
				b.polyline(i, l, x, y, func(p [2]float64) string {
					return l.Name + ": " + c.Y.tick(p[1]) + " at " + c.X.tick(p[0])
				})
			}
		}
	}
	return b.close()
}

const (
	barTop, barHeight, barGap = 12, 24, 12

	other = 2 // the pale colour
)

func (c Chart) bars() string {
	longest, names := 0.0, 0
	for _, bar := range c.Bars {
		sum := 0.0
		for _, p := range bar.Parts {
			sum += p
		}
		longest, names = max(longest, sum), max(names, len([]rune(bar.Name)))
	}
	from := float64(min(20+names*7, 260))
	height := barTop + len(c.Bars)*(barHeight+barGap) + bottom
	x := Axis{Unit: c.X.Unit}.scale([]float64{0, longest}, from, chartWidth-right-60, true)
	var b svg
	b.open(height, c.Title)
	for _, t := range x.ticks {
		b.line("grid", x.at(t), barTop-4, x.at(t), float64(height-bottom))
		b.text("tick", x.at(t), float64(height-bottom+16), "middle", c.X.tick(t))
	}
	b.text("label", (from+chartWidth-right)/2, float64(height-8), "middle", c.X.Label)
	for i, bar := range c.Bars {
		y := float64(barTop + i*(barHeight+barGap))
		b.text("name", from-10, y+barHeight/2+5, "end", bar.Name)
		at, sum := 0.0, 0.0
		for k, part := range bar.Parts {
			name := bar.Name
			if k < len(c.Legend) {
				name += ", " + c.Legend[k]
			}
			if bar.Other {
				k = other
			}
			b.rect(k, x.at(at), y, x.at(at+part)-x.at(at), barHeight, name+": "+c.X.tick(part))
			at += part
			sum += part
		}
		b.text("tick", x.at(sum)+6, y+barHeight/2+4, "start", c.X.tick(sum))
	}
	return b.close()
}

// Keys are the names to explain the colours by, in their order.
func (c Chart) Keys() []string {
	if len(c.Bars) > 0 {
		return c.Legend
	}
	var keys []string
	for _, l := range c.Lines {
		keys = append(keys, l.Name)
	}
	if len(keys) == 1 { // the title says it
		return nil
	}
	return keys
}

// tick writes a number on an axis.
func (a Axis) tick(v float64) string {
	if a.Nines {
		return trimmed(strconv.FormatFloat(v*100, 'f', 3, 64)) + " %"
	}
	s := a.Unit.Format(Of(v))
	number, unit, ok := strings.Cut(s, " ")
	if !ok {
		return trimmed(number)
	}
	return trimmed(number) + " " + unit
}

// trimmed is a number without what its fraction ends with for nothing.
func trimmed(number string) string {
	if strings.Contains(number, ".") {
		return strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number
}

// scale maps numbers to positions.
type scale struct {
	place    func(float64) float64 // the number as it is spread evenly
	low, top float64               // placed
	from, to float64
	ticks    []float64
}

func (s scale) at(v float64) float64 {
	if s.top == s.low {
		return (s.from + s.to) / 2
	}
	return s.from + (s.place(v)-s.low)/(s.top-s.low)*(s.to-s.from)
}

// scale fits the axis to its numbers. Lengths start from zero.
func (a Axis) scale(values []float64, from, to float64, zero bool) scale {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if a.Log && v <= 0 {
			continue
		}
		low, high = min(low, v), max(high, v)
	}
	if low > high {
		low, high = 0, 1
	}
	s := scale{from: from, to: to, place: func(v float64) float64 { return v }}
	switch {
	case a.Nines:
		s.place = func(v float64) float64 { return -math.Log10(max(1-v, 1e-6)) }
		for _, t := range []float64{0, .5, .9, .99, .999, .9999, .99999} {
			if t >= low && t <= high {
				s.ticks = append(s.ticks, t)
			}
		}
	case a.Log:
		s.place = func(v float64) float64 { return math.Log10(max(v, 1e-12)) }
		s.ticks, low, high = decades(low, high)
	default:
		if zero {
			low = 0
		}
		s.ticks, high = rounds(low, high, a.Unit == Count)
	}
	s.low, s.top = s.place(low), s.place(high)
	return s
}

// decades are the powers of ten around a range, and for a short one also their
// doubles and halves.
func decades(low, high float64) (ticks []float64, from, to float64) {
	steps := []float64{1}
	if high/low < 30 {
		steps = []float64{1, 2, 5}
	}
	var all []float64
	for e := math.Floor(math.Log10(low)) - 1; e <= math.Ceil(math.Log10(high)); e++ {
		for _, s := range steps {
			all = append(all, s*math.Pow(10, e))
		}
	}
	first, last := 0, len(all)-1
	for first < len(all)-1 && all[first+1] <= low*1.0001 {
		first++
	}
	for last > first && all[last-1] >= high*0.9999 {
		last--
	}
	return all[first : last+1], all[first], all[last]
}

// rounds are up to seven round numbers from low to beyond high.
func rounds(low, high float64, whole bool) (ticks []float64, to float64) {
	span := high - low
	if span == 0 {
		span = max(math.Abs(high), 1)
	}
	step := math.Pow(10, math.Floor(math.Log10(span/4)))
	for span/step > 7 {
		switch {
		case span/(2*step) <= 7:
			step *= 2
		case span/(5*step) <= 7:
			step *= 5
		default:
			step *= 10
		}
	}
	if whole {
		step = max(step, 1)
	}
	for t := math.Ceil(low/step-1e-9) * step; ; t += step {
		ticks = append(ticks, t)
		if t >= high-1e-9*step {
			return ticks, max(t, high)
		}
	}
}

// svg writes elements. Everything that is text is escaped.
type svg struct{ strings.Builder }

func (b *svg) open(height int, title string) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`, chartWidth, height, html.EscapeString(title))
}

func (b *svg) close() string {
	b.WriteString("</svg>")
	return b.String()
}

func (b *svg) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

func (b *svg) text(class string, x, y float64, anchor, text string) {
	fmt.Fprintf(b, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, class, x, y, anchor, html.EscapeString(text))
}

func (b *svg) rect(colour int, x, y, w, h float64, title string) {
	fmt.Fprintf(b, `<rect class="f%d" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`, colour, x, y, max(w, 0), h, html.EscapeString(title))
}

func (b *svg) polyline(colour int, l Line, x, y scale, title func([2]float64) string) {
	class := fmt.Sprintf("s%d", colour)
	if l.Ours {
		class += " ours"
	}
	fmt.Fprintf(b, `<polyline class="%s" points="`, class)
	for i, p := range l.Points {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(b, "%.1f,%.1f", x.at(p[0]), y.at(p[1]))
	}
	b.WriteString(`"/>`)
	if len(l.Points) > 12 { // a curve, not measured points
		return
	}
	for _, p := range l.Points {
		fmt.Fprintf(b, `<circle class="f%d" cx="%.1f" cy="%.1f" r="3.5"><title>%s</title></circle>`, colour, x.at(p[0]), y.at(p[1]), html.EscapeString(title(p)))
	}
}
