/// What is done in a world that a test or a person writes, instead of what a seed would choose.
///
/// Devices, front-ends, partitions and receivers are numbered from 0. Times are simulated milliseconds.
public struct WorldScript: Sendable, Hashable {
    public enum Step: Sendable, Hashable {
        case frontEndCrashes(Int, for: Int64)
        /// It accepts requests all the while, and what it has for the log waits in its queue.
        case frontEndIsCut(Int, for: Int64)
        /// The process stands still, as by SIGSTOP.
        case frontEndHangs(Int, for: Int64)
        case frontEndClockIsSet(Int, by: Int64)
        /// Everything in its queue is lost, and it says so.
        case frontEndLosesItsQueue(Int)
        case logIsDown(for: Int64)
        case partitionLags(Int, for: Int64)
        case databaseIsDown(for: Int64)
        /// Every worker crashes; as many start when the time is over.
        case workersAreDown(for: Int64)
        case workerStarts
        case workerCrashes
        case partitionsAreGivenAnew
        /// One of the settings of `World.settings`.
        case settingsChange(Int)
        case deviceFallsSilent(Int)
        case deviceReturns(Int)
        case deviceStops(Int)
        case deviceTunnelBreaks(Int)
        /// The first ones: their network breaks.
        case devicesVanish(count: Int)
        /// All that are silent speak within a second.
        case everyoneReturns
        case dispatcherCrashes(for: Int64)
        case receiverIsDown(Int, for: Int64)
        case deviceIsSilenced(Int, for: Int64)
    }

    public struct Act: Sendable, Hashable {
        public var time: Int64
        public var step: Step
    }

    public private(set) var acts: [Act] = []

    public init() {}

    /// - Parameter seconds: from the world's beginning.
    public func at(_ seconds: Int64, _ step: Step) -> WorldScript {
        var copy = self
        copy.acts.append(Act(time: seconds * 1_000, step: step))
        return copy
    }
}

extension World {
    func perform(_ step: WorldScript.Step) {
        switch step {
        case .frontEndCrashes(let index, let length):
            disturbFrontEnd(.frontEndCrash, index, length)
        case .frontEndIsCut(let index, let length): disturbFrontEnd(.frontEndCut, index, length)
        case .frontEndHangs(let index, let length):
            disturbFrontEnd(.processHangs, index, length)
        case .frontEndClockIsSet(let index, let step): setClock(index, by: step)
        case .frontEndLosesItsQueue(let index): loseQueue(index)
        case .logIsDown(let length): disturbLog(length)
        case .partitionLags(let partition, let length): lag(partition, length)
        case .databaseIsDown(let length): disturbDatabase(length)
        case .workersAreDown(let length):
            let count = members.count
            while !members.isEmpty { crashWorker(0) }
            for _ in 0..<count { queue.add(.startWorker, at: now + length) }
        case .workerStarts: startWorker()
        case .workerCrashes: if !members.isEmpty { crashWorker(random.below(members.count)) }
        case .partitionsAreGivenAnew: moveWorkers(starting: false)
        case .settingsChange(let number): reload(number)
        case .deviceFallsSilent(let index): change(index, to: .silent)
        case .deviceReturns(let index): change(index, to: .well)
        case .deviceStops(let index): change(index, to: .stopped)
        case .deviceTunnelBreaks(let index): change(index, to: .tunnelDown)
        case .devicesVanish(let count):
            for index in 0..<min(count, devices.count) { change(index, to: .silent) }
        case .everyoneReturns:
            for index in devices.indices where devices[index].life == .silent {
                change(index, to: .well)
            }
        case .dispatcherCrashes(let length): crashDispatcher(length)
        case .receiverIsDown(let index, let length): stopReceiver(index, length)
        case .deviceIsSilenced(let index, let length): silence(index, length)
        }
    }
}
