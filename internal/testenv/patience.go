package testenv

import "time"

// Patience bounds every wait of a test for something that should come. A machine may be busy with other tests, and only a test that fails
// waits that long.
const Patience = 4 * time.Minute
