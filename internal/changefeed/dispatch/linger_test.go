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
				l.wrote(1, test.rows, 0, now)
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
			l.wrote(1, 200, 0, now)
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

// Tables that share writes wait only while the sink is busy, and much of its work is tables with few rows each.
func TestTablesThatShareWritesWaitOnlyWhileTheSinkIsBusy(t *testing.T) {
	for name, test := range map[string]struct {
		tables, rows int // of each write
		underWay     float64
		least        time.Duration
	}{
		"many tables of few rows, busy":            {tables: 100, rows: 500, underWay: 2, least: lingerMost},
		"many tables of few rows, not busy":        {tables: 100, rows: 500, underWay: 0.5},
		"many tables of many rows, busy":           {tables: 100, rows: 100 * sharedRows, underWay: 2},
		"few tables, busy":                         {tables: 4, rows: 8, underWay: 2},
		"one change of one table now and then":     {tables: 1, rows: 1, underWay: 0.01},
		"as few tables per second as with a pause": {tables: 18, rows: 2000, underWay: 2},
	} {
		t.Run(name, func(t *testing.T) {
			const perSecond = 50
			l, now := &linger{shared: true}, time.Now()
			write := func(underWay float64) {
				for range 2 * perSecond {
					now = now.Add(time.Second / perSecond)
					l.wrote(test.tables, test.rows, time.Duration(underWay*float64(time.Second/perSecond)), now)
				}
			}
			write(test.underWay)
			if got := l.now(now); got != test.least {
				t.Errorf("tables wait %s, not %s", got, test.least)
			}
			write(idleWrites / 2.)
			if got := l.now(now); got != 0 {
				t.Errorf("while the sink has time left tables wait %s", got)
			}
		})
	}
}
