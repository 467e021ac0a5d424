package testenv

import (
	"os/exec"
	"testing"
	"time"
)

func TestAProgramWithTheRaceDetectorEndsAtOnce(t *testing.T) {
	path := Ebb(t)
	best := time.Hour
	for range 5 {
		began := time.Now()
		if out, err := exec.Command(path, "version").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		best = min(best, time.Since(began))
	}
	if best > time.Second {
		t.Errorf("ebb version took %s at least", best)
	}
}
