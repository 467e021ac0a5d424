package snapshot

// HoldKeys bounds the keys that are held in memory at a time, and returns a function that undoes that.
func HoldKeys(n int) (undo func()) {
	was := keysPerPass
	keysPerPass = n
	return func() { keysPerPass = was }
}

// CheckRoom compares the size of a snapshot with the bytes that are free for it.
var CheckRoom = checkRoom
