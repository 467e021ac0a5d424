package dispatch

import (
	"testing"
	"time"
)

func TestTablesWaitForMoreOnlyWhereThatBringsMore(t *testing.T) {
	for name, test := range map[string]struct {
		rate, rows int
		least      time.Duration
	}{
		"few writes":                     {rate: 100, rows: 1000},
		"many writes of few rows":        {rate: 5000, rows: 6},
		"many writes of many rows":       {rate: 800, rows: 100, least: lingerMost},
		"as many as a pause brings them": {rate: lingerAbove - 10, rows: 500},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := &linger{}, time.Now()
			for range 2 * test.rate {
				now = now.Add(time.Second / time.Duration(test.rate))
				l.wrote(test.rows, now)
			}
			if got := l.now(now); got != test.least {
				t.Errorf("tables wait %s, not %s", got, test.least)
			}
			if got := l.now(now.Add(20 * lingerEvery)); got != 0 {
				t.Errorf("with nothing written any more tables wait %s", got)
			}
		})
	}
}

// A pause that is long enough is not given up at once: without it there would be as many writes as before.
func TestAPauseThatHelpsStays(t *testing.T) {
	l, now := &linger{}, time.Now()
	write := func(rate int) {
		for range rate {
			now = now.Add(time.Second / time.Duration(rate))
			l.wrote(200, now)
		}
	}
	write(4 * lingerAbove)
	write(lingerAbove * 9 / 10)
	if l.now(now) != lingerMost {
		t.Errorf("tables wait %s", l.now(now))
	}
	write(lingerAbove / 2)
	if l.now(now) != 0 {
		t.Errorf("with few writes tables wait %s", l.now(now))
	}
}
