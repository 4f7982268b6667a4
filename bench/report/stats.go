package report

import (
	"math"
	"slices"
)

// Median makes one value of those of several slices: the middle one, with half
// the spread between them as its noise.
func Median(parts []float64) Value {
	if len(parts) == 0 {
		return Text("-")
	}
	s := slices.Clone(parts)
	slices.Sort(s)
	m := s[len(s)/2]
	if len(s)%2 == 0 {
		m = (m + s[len(s)/2-1]) / 2
	}
	v := Value{Number: m}
	if m != 0 {
		v.Noise = math.Abs((s[len(s)-1] - s[0]) / 2 / m)
	}
	return v
}

// Quantile is the smallest of the samples that a share q of them does not exceed.
// It sorts them.
func Quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	slices.Sort(samples)
	i := int(math.Ceil(q*float64(len(samples)))) - 1
	return samples[min(max(i, 0), len(samples)-1)]
}

// Mean is the mean of the samples.
func Mean(samples []float64) float64 {
	sum := 0.0
	for _, s := range samples {
		sum += s
	}
	return sum / float64(len(samples))
}
