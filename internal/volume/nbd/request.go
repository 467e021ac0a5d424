package nbd

import (
	"context"
	"errors"
	"sync"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// Reads of this length or more are asked for holes, and holes of this length or more are not transmitted. Below, sending zeros is cheaper
// than asking the device.
const (
	minSparseRead = 64 << 10
	minSparseHole = 32 << 10
)

// Extents are looked up in windows that grow, so that neither a client that wants one extent of a fragmented device nor one that asks for
// a large hole costs much.
const (
	firstWindow    = 1 << 20
	lastWindow     = 256 << 20
	maxDescriptors = 8 << 10
)

// request is one request and its reply.
type request struct {
	header
	refused failure // set if the device is not asked at all
	payload *buffer // what a write brings, or a read returns
	cost    int     // bytes that the connection accounts for it

	reply    [][]byte
	segments [2][]byte // backs reply
	head     [64]byte  // backs the header of the reply
}

var requests = sync.Pool{New: func() any { return new(request) }}

func newRequest(h header) *request {
	r := requests.Get().(*request)
	r.header = h
	return r
}

// release gives the request and its payload back.
func (r *request) release() {
	if r.payload != nil {
		r.payload.release()
	}
	r.payload, r.refused, r.cost = nil, failure{}, 0
	clear(r.reply)
	r.segments, r.reply = [2][]byte{}, nil
	requests.Put(r)
}

// failure is what a client gets to know of an error. The zero value is none.
type failure struct {
	errno   errno
	message string
}

// failureOf maps an error of the device.
func failureOf(err error) failure {
	e := errnoIO
	switch {
	case errors.Is(err, block.ErrNoSpace):
		e = errnoNoSpace
	case errors.Is(err, block.ErrClosed):
		e = errnoShutdown
	}
	return failure{errno: e, message: err.Error()}
}

// export is the device as one connection sees it.
type export struct {
	device     block.Device
	size       int64
	structured bool
	allocation bool
}

// check says why a request is refused without asking the device.
func (x *export) check(h header) failure {
	flags, known := h.command.allowedFlags()
	if !x.structured {
		flags &^= cmdFlagDF
	}
	switch {
	case !known:
		return failure{errnoInvalid, "unknown command"}
	case h.flags&^flags != 0:
		return failure{errnoInvalid, "a flag that this command does not have"}
	case h.command == cmdFlush && (h.offset != 0 || h.length != 0):
		return failure{errnoInvalid, "a flush has neither offset nor length"}
	case h.offset > uint64(x.size) || uint64(h.length) > uint64(x.size)-h.offset:
		if h.command == cmdWrite || h.command == cmdWriteZeroes {
			return failure{errnoNoSpace, "beyond the end of the export"}
		}
		return failure{errnoInvalid, "beyond the end of the export"}
	case h.command == cmdRead && h.length > maxPayload:
		if x.structured {
			return failure{errnoOverflow, "longer than the maximum payload"}
		}
		return failure{errnoInvalid, "longer than the maximum payload"}
	case h.command == cmdBlockStatus && !x.allocation:
		return failure{errnoInvalid, "no metadata context was negotiated"}
	case h.command == cmdBlockStatus && h.length == 0:
		return failure{errnoInvalid, "a range without a length"}
	}
	return failure{}
}

// execute does what a request asks for and prepares the reply. It returns the device's error, which the reply has as well.
func (x *export) execute(ctx context.Context, r *request) error {
	if r.refused.errno != 0 {
		x.fail(r, r.refused)
		return nil
	}
	err := x.perform(ctx, r)
	if err != nil {
		x.fail(r, failureOf(err))
	}
	return err
}

func (x *export) perform(ctx context.Context, r *request) error {
	off, length := int64(r.offset), int64(r.length)
	fua := r.flags&cmdFlagFUA != 0
	var err error
	switch r.command {
	case cmdRead:
		return x.read(ctx, r)
	case cmdBlockStatus:
		return x.blockStatus(ctx, r)
	case cmdFlush:
		err = x.device.Flush(ctx)
	case cmdWrite:
		if length > 0 {
			err = x.device.WriteAt(ctx, r.payload.bytes, off, fua)
		}
	case cmdTrim:
		if length > 0 {
			err = x.device.Zero(ctx, off, length, block.Zero{Hole: true, FUA: fua})
		}
	case cmdWriteZeroes:
		if length > 0 {
			err = x.device.Zero(ctx, off, length, block.Zero{Hole: r.flags&cmdFlagNoHole == 0, FUA: fua})
		}
	}
	if err != nil {
		return err
	}
	// A simple reply is allowed here whatever was negotiated, and it is the shorter one.
	r.reply = append(r.segments[:0], appendSimple(r.head[:0], r.cookie, 0))
	return nil
}

// fail makes the reply an error.
func (x *export) fail(r *request, f failure) {
	if x.structured {
		r.reply = append(r.segments[:0], appendErrorChunk(r.head[:0], r.cookie, f.errno, f.message))
		return
	}
	r.reply = append(r.segments[:0], appendSimple(r.head[:0], r.cookie, f.errno))
}

func (x *export) read(ctx context.Context, r *request) error {
	length := int64(r.length)
	if length == 0 {
		r.reply = append(r.segments[:0], x.emptyRead(r))
		return nil
	}
	if x.structured && r.flags&cmdFlagDF == 0 && length >= minSparseRead {
		if runs := x.sparseRuns(ctx, int64(r.offset), length); runs != nil {
			return x.readRuns(ctx, r, runs)
		}
	}
	r.payload = newBuffer(int(length))
	if err := x.device.ReadAt(ctx, r.payload.bytes, int64(r.offset)); err != nil {
		return err
	}
	head := r.head[:0]
	if x.structured {
		head = appendDataChunk(head, r.header, chunkFlagDone, r.offset, int(length))
	} else {
		head = appendSimple(head, r.cookie, 0)
	}
	r.reply = append(r.segments[:0], head, r.payload.bytes)
	return nil
}

func (x *export) emptyRead(r *request) []byte {
	if x.structured {
		return appendChunk(r.head[:0], r.cookie, chunkFlagDone, chunkNone, 0)
	}
	return appendSimple(r.head[:0], r.cookie, 0)
}

// sparseRuns returns the data and the holes of a range if it is worth while to tell them apart, otherwise nil. Short holes count as data.
// Holes that cannot be found out are no reason to fail a read.
func (x *export) sparseRuns(ctx context.Context, off, length int64) []block.Extent {
	extents, err := x.device.Extents(ctx, off, length)
	if err != nil {
		return nil
	}
	var runs []block.Extent
	holes := false
	add := func(e block.Extent) {
		if n := len(runs); n > 0 && runs[n-1].Hole == e.Hole {
			runs[n-1].Length += e.Length
			return
		}
		runs = append(runs, e)
	}
	for _, e := range mergeExtents(extents, length) {
		e.Hole = e.Hole && e.Length >= minSparseHole
		holes = holes || e.Hole
		add(e)
	}
	if !holes {
		return nil
	}
	return runs
}

// readRuns reads the data of a range and replies with a chunk for each run.
func (x *export) readRuns(ctx context.Context, r *request, runs []block.Extent) error {
	data := int64(0)
	for _, run := range runs {
		if !run.Hole {
			data += run.Length
		}
	}
	r.payload = newBuffer(int(data))

	const chunkHead = structuredHeader + 12
	heads := make([]byte, 0, len(runs)*chunkHead)
	reply := make([][]byte, 0, 2*len(runs))
	rest, off := r.payload.bytes, int64(r.offset)
	for i, run := range runs {
		flags := uint16(0)
		if i == len(runs)-1 {
			flags = chunkFlagDone
		}
		begin := len(heads)
		if run.Hole {
			heads = appendChunk(heads, r.cookie, flags, chunkHole, 12)
			heads = be.AppendUint64(heads, uint64(off))
			heads = be.AppendUint32(heads, uint32(run.Length))
			reply = append(reply, heads[begin:])
		} else {
			piece := rest[:run.Length]
			rest = rest[run.Length:]
			if err := x.device.ReadAt(ctx, piece, off); err != nil {
				return err
			}
			heads = appendDataChunk(heads, r.header, flags, uint64(off), len(piece))
			reply = append(reply, heads[begin:], piece)
		}
		off += run.Length
	}
	r.reply = reply
	return nil
}

// appendDataChunk appends the header of a chunk of data, up to the data.
func appendDataChunk(b []byte, h header, flags uint16, off uint64, length int) []byte {
	b = appendChunk(b, h.cookie, flags, chunkData, 8+length)
	return be.AppendUint64(b, off)
}

func (x *export) blockStatus(ctx context.Context, r *request) error {
	most := maxDescriptors
	if r.flags&cmdFlagReqOne != 0 {
		most = 1
	}
	extents, err := x.extents(ctx, int64(r.offset), int64(r.length), most)
	if err != nil {
		return err
	}
	length := 4 + 8*len(extents)
	b := appendChunk(make([]byte, 0, structuredHeader+length), r.cookie, chunkFlagDone, chunkBlockStatus, length)
	b = be.AppendUint32(b, contextAllocationID)
	for _, e := range extents {
		state := uint32(0)
		if e.Hole {
			state = stateHole | stateZero
		}
		b = be.AppendUint32(b, uint32(e.Length))
		b = be.AppendUint32(b, state)
	}
	r.reply = append(r.segments[:0], b)
	return nil
}

// extents returns the first extents of a range, at least one and not more than most. Neighbours differ.
func (x *export) extents(ctx context.Context, off, length int64, most int) ([]block.Extent, error) {
	var all []block.Extent
	window := int64(firstWindow)
	for length > 0 && len(all) <= most {
		n := min(window, length)
		extents, err := x.device.Extents(ctx, off, n)
		if err != nil {
			return nil, err
		}
		for _, e := range mergeExtents(extents, n) {
			if last := len(all) - 1; last >= 0 && all[last].Hole == e.Hole {
				all[last].Length += e.Length
			} else {
				all = append(all, e)
			}
		}
		off, length = off+n, length-n
		window = min(4*window, lastWindow)
	}
	return all[:min(len(all), most)], nil
}

// mergeExtents joins neighbours of the same kind and makes the extents cover a range exactly. What the device left out counts as data.
func mergeExtents(extents []block.Extent, length int64) []block.Extent {
	merged := make([]block.Extent, 0, len(extents)+1)
	add := func(e block.Extent) {
		e.Length = min(e.Length, length)
		if e.Length <= 0 {
			return
		}
		length -= e.Length
		if n := len(merged); n > 0 && merged[n-1].Hole == e.Hole {
			merged[n-1].Length += e.Length
			return
		}
		merged = append(merged, e)
	}
	for _, e := range extents {
		add(e)
	}
	add(block.Extent{Length: length})
	return merged
}
