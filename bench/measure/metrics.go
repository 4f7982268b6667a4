package measure

import (
	"context"
	"net/http"
	"strings"
)

// metrics are the series of a proxy at one moment, by name with labels.
type metrics map[string]float64

func (s *subject) metrics(ctx context.Context) (metrics, error) {
	m := metrics{}
	return m, do(ctx, http.MethodGet, s.admin+"/metrics/json", "", nil, &m)
}

// sum adds up all series of a name.
func (m metrics) sum(name string) (sum float64) {
	for series, v := range m {
		if base, _, _ := strings.Cut(series, "{"); base == name {
			sum += v
		}
	}
	return sum
}

// since is what was added to each series after an earlier moment.
func (m metrics) since(before metrics) metrics {
	d := metrics{}
	for series, v := range m {
		d[series] = v - before[series]
	}
	return d
}

// mean is the mean of a histogram; 0 without any.
func (m metrics) mean(name, labels string) float64 {
	count := m[name+"_count"+labels]
	if count == 0 {
		return 0
	}
	return m[name+"_sum"+labels] / count
}
