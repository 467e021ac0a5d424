package deployment_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// drawnFacts are any facts about any object.
func drawnFacts(t *rapid.T) deployment.Facts {
	flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
	f := facts(nil)
	if flag("exists") {
		f.Object = program("d")
		for _, c := range []struct {
			name string
			do   change
		}{
			{"addressed here", addressed("n1")}, {"addressed there", addressed("n2")}, {"daemon", daemon}, {"disabled", disabled}, {"selects", fastDisk},
			{"here", on("n1", rapid.Int64Range(1, 3).Draw(t, "epoch"), v1alpha1.InstanceRunning)}, {"there", on("n2", 1, v1alpha1.InstanceRunning)},
			{"held here", holder("n1", rapid.Int64Range(1, 3).Draw(t, "holder's epoch"), 1)}, {"held there", holder("n2", 1, 1)},
		} {
			if flag(c.name) {
				c.do(f.Object)
			}
		}
	}
	if flag("runs") {
		present(&f)
	}
	for _, c := range []struct {
		name string
		do   func(*deployment.Facts)
	}{
		{"ending", func(f *deployment.Facts) { f.Phase = deployment.Ending }}, {"draining", draining}, {"leaving", leaving}, {"admitted", admitted},
		{"no turn", noTurn}, {"old", oldVersion}, {"recreated", recreated}, {"may restart", mayRestart}, {"pause", pause}, {"spent", spent},
		{"slow", slowDisk}, {"distrusts", distrusting}, {"occupied", occupied},
	} {
		if rapid.IntRange(0, 3).Draw(t, c.name) == 3 {
			c.do(&f)
		}
	}
	return f
}

func TestWhatIsDoneFitsWhatIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawnFacts(t)
		step := deployment.Next(f)
		wrong := func(why string) { t.Fatalf("%+v though %s: %+v", step, why, f) }
		switch step.Do {
		case deployment.Stop, deployment.Restart:
			if f.Phase != deployment.Present {
				wrong("nothing runs")
			}
		case deployment.Start, deployment.Release, deployment.Forget:
			if f.Phase != deployment.Absent {
				wrong("something runs")
			}
		case deployment.Take:
			if f.Phase == deployment.Ending {
				wrong("something ends")
			}
		}
		if step.Do == deployment.Idle {
			return
		}
		d := f.Object
		deploys := d != nil && d.Spec.Type == v1alpha1.TypeDeployment
		if begins := step.Do == deployment.Start || step.Do == deployment.Take; begins {
			switch {
			case d == nil || !d.IsEnabled() || f.Leaving || f.Trust.Refuses(d) != "" || deploys && d.Spec.Address != "n1":
				wrong("it is not wanted here")
			case f.Phase == deployment.Absent && !f.Alive && !f.Admitted:
				wrong("the node takes no new work")
			case f.Phase == deployment.Absent && deploys && f.Occupied != "":
				wrong("another may run it")
			}
		}
		if step.Do == deployment.Start && (d.Instance("n1") == nil || d.Instance("n1").NodeEpoch != 2 || deploys && (d.Holder().Node != "n1" || d.Holder().NodeEpoch != 2)) {
			wrong("it is not taken")
		}
		if step.Do == deployment.Forget && d != nil && (d.Holder().Node == "n1" || d.Instance("n1") != nil) {
			wrong("the object has the node down for it")
		}
	})
}

func TestNoCourseOfEventsBreaksTheRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOfN(rapid.Byte(), 300, 1500).Draw(t, "tape")
		if verdict := play(simtest.NewTape(bytes), broken{}).Verdict(); verdict != "" {
			t.Fatal(verdict)
		}
	})
}

// TestNoSeedBreaksTheRules also shows that the runs are worth something: what the rules are about did happen.
func TestNoSeedBreaksTheRules(t *testing.T) {
	t.Parallel()
	census := simtest.Census{}
	for seed := range testlength.Seeds(120, 3000) {
		r := play(simtest.SeededTape(seed), broken{})
		if verdict := r.Verdict(); verdict != "" {
			t.Fatalf("seed %d: %s", seed, verdict)
		}
		census.Add(r.Counts())
	}
	census.Require(t, 1,
		"claimed", "claim lost", "taken", "conflict", "started", "ended", "restarted", "released", "re-attached", "left", "killed",
		"marked", "began anew", "ended by the deadline", "arrived late", "refused by the shim", "refused by the gate", "drained", "deleted", "retyped",
		"wait another node may still run it", "wait the rollout restarts other nodes first", "wait waiting before the next start", "wait stopping",
		"wait the node takes no new work", "detached", "freed", "machine died", "given up", "upgraded", "kept its user", "wait "+deployment.WaitAvoided, "wait "+deployment.WaitUser,
	)
}

func TestATapePlaysTheSameWayTwice(t *testing.T) {
	for seed := range uint64(5) {
		one, two := play(simtest.SeededTape(seed), broken{}), play(simtest.SeededTape(seed), broken{})
		if !slices.Equal(one.Heard(), two.Heard()) {
			t.Fatalf("seed %d:\n%q\n%q", seed, one.Heard(), two.Heard())
		}
	}
}

// Each of these breaks one rule of the game on purpose, and the referee must see it: a property that nothing can break is
// none. Seeds are tried in order, so the same one is found every time.
func TestTheRefereeSeesABrokenRule(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken broken
		want   rule
	}{
		{"a take without a look at who may still run it", broken{takesOccupied: true}, oneRunsIt},
		{"a newer epoch of a node taken for the end of the older", broken{epochIsOver: true}, oneRunsIt},
		{"a take by cached leases", broken{cachedLeases: true}, oneRunsIt},
		{"a release before the program has ended", broken{releasesEarly: true}, oneRunsIt},
		{"a start without a take", broken{startsUntaken: true}, oneRunsIt},
		{"writes that ignore versions", broken{blind: true}, oneRunsIt},
		{"shims without a deadline", broken{immortal: true}, oneRunsIt},
		{"shims without a deadline, by the clock", broken{immortal: true}, deadInTime},
		{"a shim that starts past its deadline", broken{lateStart: true}, deadInTime},
		{"a mark before programs are dead", broken{marksEarly: true}, oneRunsIt},
		{"a restarted node that does not look what runs", broken{unattached: true}, oneEach},
		{"a restarted node that gives back what still runs", broken{unattached: true}, oneRunsIt},
		{"a draining node whose gate is open", broken{gateOpen: true}, takesNothing},
		{"a node that claims against its policy", broken{noneClaims: true}, noneWrites},
		{"a rollout that waits for nobody", broken{restartsAtOnce: true}, fewRestart},
		{"a deleted object that goes while it runs", broken{reapsEarly: true}, oneRunsIt},
		{"a node that does not say what goes on without a lease", broken{unmarked: true}, oneRunsIt},
		{"a restarted node that does not see a shim that begins", broken{unspawned: true}, oneRunsIt},
		{"a node that starts a program before it is decided as whom it runs", broken{undecided: true}, notForNothing},
		{"a node that does not give up what fails there", broken{keepsFailing: true}, runsInTheEnd},
		{"a node that never gives back", broken{neverReleases: true}, runsInTheEnd},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			simtest.RequireBreach(t, 400, func(seed uint64) map[rule]string { return play(simtest.SeededTape(seed), c.broken).Breaches() }, c.want)
		})
	}
}
