package snapshot

// HoldKeys bounds the keys that are held in memory at a time, and returns a function that undoes that.
func HoldKeys(n int) (undo func()) {
	was := keysPerPass
	keysPerPass = n
	return func() { keysPerPass = was }
}
